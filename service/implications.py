"""Memory across jobs: which nodes, GPUs and links failures pointed at, and how suspicious that makes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from rules.diagnosis import Diagnosis
from rules.signal import Role, Trust
from rules.taxonomy import Category, Severity
from service.store.incidents import Implication, Incident

__all__ = ["Lemon", "lemon_score", "lemons", "record_implications"]

HALF_LIFE_SECONDS = 14 * 86400.0
WINDOW_SECONDS = 90 * 86400.0
# How much one failure says about the place that it points at.
SEVERITY_WEIGHT = {Severity.SEV1: 0.6, Severity.SEV2: 0.3, Severity.SEV3: 0.15, Severity.NONE: 0.0}
# What only the job itself says of a place may be wrong, or meant to mislead.
JOB_TRUST_FACTOR = 0.25
# However often one job fails on a place, that alone proves no more than this: the job may be what is broken.
ONE_JOB_LIMIT = 0.7


@dataclass(frozen=True, slots=True)
class Lemon:
    """A place under suspicion. `score`: 0 to 1; `jobs` are distinct."""

    kind: str
    name: str
    score: float
    failures: int
    jobs: int


def lemon_score(implications: Iterable[tuple[str | None, float, float]], now: float) -> float:
    """Suspicion from (job, weight, time in seconds since the epoch) of each failure that pointed at a place.

    Weights halve every two weeks; those of one job add up to ONE_JOB_LIMIT at most; jobs count as independent witnesses.
    """
    by_job: dict[str | None, float] = {}
    for job, weight, at in implications:
        by_job[job] = by_job.get(job, 0.0) + weight * 0.5 ** (max(0.0, now - at) / HALF_LIFE_SECONDS)
    innocent = 1.0
    for weight in by_job.values():
        innocent *= 1.0 - min(weight, ONE_JOB_LIMIT)
    return round(1.0 - innocent, 3)


def record_implications(session: Session, incident: Incident, diagnosis: Diagnosis, now: float) -> None:
    """Note at whom an infrastructure failure points, once per incident and place."""
    if diagnosis.category is not Category.INFRASTRUCTURE:
        return
    roots = [item for item in diagnosis.evidence if item.role is Role.ROOT]
    vouched = any(item.trust is not Trust.JOB for item in roots)
    weight = SEVERITY_WEIGHT[diagnosis.severity] * diagnosis.confidence * (1.0 if vouched else JOB_TRUST_FACTOR)
    domain = diagnosis.fault_domain
    for kind, name in (("node", domain.node), ("gpu", domain.gpu), ("link", domain.link)):
        if name is None or weight <= 0:
            continue
        known = session.scalar(
            select(Implication).where(Implication.incident_id == incident.id, Implication.kind == kind, Implication.name == name)
        )
        if known is None:
            known = Implication(incident_id=incident.id, kind=kind, name=name, job=incident.job)
            session.add(known)
        known.reason, known.weight, known.at = diagnosis.reason, weight, now


def lemons(session: Session, now: float, kind: str | None = None, limit: int = 50) -> Sequence[Lemon]:
    """Places that failures pointed at lately, the most suspicious first."""
    query = select(Implication).where(Implication.at >= now - WINDOW_SECONDS)
    if kind is not None:
        query = query.where(Implication.kind == kind)
    places: dict[tuple[str, str], list[tuple[str | None, float, float]]] = {}
    for row in session.scalars(query):
        places.setdefault((row.kind, row.name), []).append((row.job, row.weight, row.at))
    found = [
        Lemon(place[0], place[1], lemon_score(rows, now), len(rows), len({job for job, _, _ in rows}))
        for place, rows in places.items()
    ]
    return sorted(found, key=lambda lemon: (-lemon.score, lemon.kind, lemon.name))[:limit]
