"""One incident per failure of one job: opening, joining and diagnosing them, with a reason for every join."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from rules.diagnosis import Diagnosis, diagnosis_document
from rules.signal import Role
from rules.taxonomy import UNKNOWN, load_taxonomy
from service.directory import directory_for
from service.implications import record_implications
from service.joining import APART, TOGETHER, job_key, merge, verdict_on
from service.silences import apply_silences
from service.store.database import hold_lock
from service.store.events import publish_event
from service.store.incidents import Failure, Incident, JoinDecision, find_failure
from service.timeline import IncidentState, add_timeline, announce, move

__all__ = [
    "FailureReport",
    "Reported",
    "apply_diagnosis",
    "fingerprint_of",
    "new_incident",
    "open_incident",
    "open_or_update_incident",
]

# An alert and a failure of one job that lie at most this far apart are about the same thing.
JOIN_WINDOW_SECONDS = 900.0

NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, slots=True)
class FailureReport:
    """A failure as a launcher or an agent reported it. `failed`: [{"rank", "node", "exit_code", "signal", "error"}].

    `vouched`: the report came under the node's own token, so its exit statuses have trust `node`.
    """

    job: str
    attempt: int
    generation: int
    idempotency_key: str
    failed: tuple[dict[str, Any], ...] = ()
    last_step: int | None = None
    last_checkpoint: str | None = None
    vouched: bool = False
    document: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reported:
    """Where a report went. `is_new`: this key was not seen before. `opened`: it made the incident."""

    failure: Failure
    incident: Incident
    is_new: bool
    opened: bool
    why: str


def digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()[:32]


def fingerprint_of(job: str | None, diagnosis: Diagnosis) -> str:
    """The identity of a root cause: deterministic fields only; attempts, ranks, paths and numbers in the text do not count."""
    root = next((item for item in diagnosis.evidence if item.role is Role.ROOT), None)
    shape = NUMBERS.sub("#", root.text)[:200] if root else ""
    domain = diagnosis.fault_domain
    return digest("failure", job, diagnosis.reason, diagnosis.rule, domain.node, domain.gpu, domain.link, shape)


def open_incident(
    session: Session, *, kind: str, fingerprint: str, summary: str, now: float, seen_at: float | None = None, **subject: Any
) -> Incident:
    """A new incident in state detected, cause not yet established. `subject`: job, attempt, node, gpu, rank."""
    incident = new_incident(kind=kind, fingerprint=fingerprint, summary=summary, now=now, seen_at=seen_at, **subject)
    session.add(incident)
    session.flush()
    apply_silences(session, incident, now)
    add_timeline(session, incident.id, "detected", summary, at=now)
    announce(session, incident, "incident.opened", now)
    return incident


def new_incident(
    *, kind: str, fingerprint: str, summary: str, now: float, seen_at: float | None = None, **subject: Any
) -> Incident:
    """As `open_incident`, not stored yet."""
    unknown = load_taxonomy()[UNKNOWN]
    return Incident(
        kind=kind,
        state=IncidentState.DETECTED.value,
        fingerprint=fingerprint,
        open_key=fingerprint,
        severity=unknown.severity.value,
        reason=UNKNOWN,
        category=unknown.category.value,
        component=unknown.component,
        remedy=unknown.remedy.value,
        summary=summary,
        source="unknown",
        confidence=0.0,
        first_seen=now if seen_at is None else min(seen_at, now),
        last_seen=now,
        occurrences=1,
        **subject,
    )


def failure_summary(report: FailureReport) -> str:
    """One sentence from the exit statuses alone."""
    parts = []
    for rank in report.failed[:4]:
        how = f"ended with signal {rank['signal']}" if rank.get("signal") else f"ended with exit code {rank.get('exit_code')}"
        if not rank.get("signal") and rank.get("exit_code") is None and rank.get("error"):
            how = f"told: {str(rank['error']).splitlines()[0][:200]}"
        parts.append(f"rank {rank.get('rank')} {how}" + (f" on {rank['node']}" if rank.get("node") else ""))
    more = f" and {len(report.failed) - 4} more ranks" if len(report.failed) > 4 else ""
    scheduler = (report.document.get("scheduler") or {}).get("why") or "the job was reported as failed"
    return f"{report.job}: " + ("; ".join(parts) + more if parts else scheduler)


def open_or_update_incident(session: Session, report: FailureReport, now: float) -> Reported:
    """Record a failure report and find or open its incident. The same key stores nothing; another report of the same attempt
    and generation joins; an open alert of the same job is taken over."""
    hold_lock(session, f"job:{report.job}")
    known = find_failure(session, report.job, report.idempotency_key)
    if known is not None:
        return Reported(known, followed(session, known.incident_id), False, False, "this report was already stored")
    incident, why = find_incident_of(session, report, now)
    opened = incident is None
    nodes = {str(rank["node"]) for rank in report.failed if rank.get("node")}
    ranks = sorted({int(rank["rank"]) for rank in report.failed if rank.get("rank") is not None})
    if incident is None:
        incident = open_incident(
            session,
            kind="failure",
            fingerprint=digest("report", report.job, report.attempt, report.generation),
            summary=failure_summary(report),
            now=now,
            job=report.job,
            attempt=report.attempt,
            node=nodes.pop() if len(nodes) == 1 else None,
            rank=str(ranks[0]) if len(ranks) == 1 else None,
        )
        why = "first report of this failure"
    failure = Failure(
        incident_id=incident.id,
        job=report.job,
        attempt=report.attempt,
        generation=report.generation,
        idempotency_key=report.idempotency_key,
        report=report.document or {"failed": list(report.failed)},
        reported_at=now,
        vouched=report.vouched,
    )
    session.add(failure)
    session.flush()
    if not opened:
        incident.kind = "failure"
        incident.attempt = report.attempt
        incident.last_seen = now
        add_timeline(session, incident.id, "joined", f"{failure_summary(report)} (joined: {why})", data={"why": why}, at=now)
        announce(session, incident, "incident.updated", now)
    publish_event(session, "job.failed", report.job, {"incident": str(incident.id), "attempt": report.attempt}, now)
    return Reported(failure, incident, True, opened, why)


def find_incident_of(session: Session, report: FailureReport, now: float) -> tuple[Incident | None, str]:
    same = session.scalar(
        select(Failure)
        .where(Failure.job == report.job, Failure.attempt == report.attempt, Failure.generation == report.generation)
        .order_by(Failure.id)
        .limit(1)
    )
    if same is not None:
        return followed(session, same.incident_id), "same job, attempt and generation"
    alerted = session.scalars(
        select(Incident)
        .where(
            Incident.job == report.job,
            Incident.kind == "alert",
            Incident.open_key.is_not(None),
            Incident.last_seen >= now - JOIN_WINDOW_SECONDS,
        )
        .order_by(Incident.last_seen.desc(), Incident.id.desc())
    ).all()
    alerted = [incident for incident in alerted if not kept_apart(session, incident, report.job)]
    if not alerted:
        return None, ""
    first, *others = alerted
    for other in others:
        merge(
            session,
            other,
            first,
            f"an alert about the same job within {JOIN_WINDOW_SECONDS / 60:.0f} minutes of its failure",
            now=now,
        )
    return first, f"an alert about the same job was open, last seen {now - first.last_seen:.0f} s before"


def kept_apart(session: Session, alerted: Incident, job: str) -> bool:
    """Whether a person said that what this alert tells is no part of the job's failures."""
    verdict = verdict_on(session, alerted.fingerprint, job_key(job))
    return verdict is not None and verdict.verdict == APART


def older_of(session: Session, incident: Incident, fingerprint: str) -> tuple[Incident | None, str]:
    """The open incident that this failure belongs to: one of the same root cause, or one that a person put it together with."""
    verdict = verdict_on(session, fingerprint, fingerprint)
    same = session.scalar(select(Incident).where(Incident.open_key == fingerprint, Incident.id != incident.id))
    if same is not None and (verdict is None or verdict.verdict != APART):
        return same, "the same root cause on the same job, still open"
    decisions = session.scalars(
        select(JoinDecision).where(
            JoinDecision.verdict == TOGETHER, or_(JoinDecision.one == fingerprint, JoinDecision.other == fingerprint)
        )
    ).all()
    for decision in decisions:
        partner = decision.other if decision.one == fingerprint else decision.one
        found = session.scalar(select(Incident).where(Incident.open_key == partner, Incident.id != incident.id))
        if found is not None:
            return found, f"{decision.by} put these two together before"
    return None, ""


def followed(session: Session, incident_id: int) -> Incident:
    """The incident, or the one that it was merged into."""
    incident = session.get_one(Incident, incident_id)
    while incident.merged_into is not None:
        incident = session.get_one(Incident, incident.merged_into)
    return incident


def with_canonical_names(session: Session, diagnosis: Diagnosis) -> Diagnosis:
    """The node and GPU of the fault domain under the ids that their agents reported; a name that nobody knows stays text."""
    domain = diagnosis.fault_domain
    directory = directory_for(session, domain.node, domain.gpu)
    node = directory.node(domain.node).id if domain.node else None
    gpu = directory.gpu(domain.gpu, node).id if domain.gpu else None
    return replace(diagnosis, fault_domain=replace(domain, node=node or domain.node, gpu=gpu or domain.gpu))


def apply_diagnosis(
    session: Session, incident: Incident, diagnosis: Diagnosis, now: float, *, actor: str = "rules", seconds: float | None = None
) -> Incident:
    """Write a diagnosis into its incident and return the incident that the failure now belongs to: an older open one of the same
    job with the same root fingerprint takes the failure in as one more occurrence."""
    hold_lock(session, f"job:{incident.job}")
    diagnosis = with_canonical_names(session, diagnosis)
    fingerprint = fingerprint_of(incident.job, diagnosis)
    session.flush()
    older, why = older_of(session, incident, fingerprint)
    if older is not None:
        merge(session, incident, older, why, now=now)
        incident = older
    domain = diagnosis.fault_domain
    incident.fingerprint = fingerprint
    if incident.closed_at is None:
        # Where people keep equal causes apart, each is open under a key of its own.
        taken = session.scalar(select(Incident.id).where(Incident.open_key == fingerprint, Incident.id != incident.id))
        incident.open_key = fingerprint if taken is None else digest(fingerprint, incident.id)
    incident.reason = diagnosis.reason
    incident.category = diagnosis.category.value
    incident.component = diagnosis.component
    incident.severity = diagnosis.severity.value
    incident.remedy = diagnosis.remedy.value
    incident.source = diagnosis.source.value
    incident.confidence = diagnosis.confidence
    incident.rule = diagnosis.rule
    incident.summary = diagnosis.summary
    incident.node = domain.node or incident.node
    incident.gpu = domain.gpu or incident.gpu
    incident.rank = domain.rank or incident.rank
    incident.link = domain.link or incident.link
    incident.diagnosis = diagnosis_document(diagnosis)
    apply_silences(session, incident, now)
    record_implications(session, incident, diagnosis, now)
    add_timeline(
        session,
        incident.id,
        "diagnosed",
        f"{diagnosis.reason} ({diagnosis.severity.value}, {diagnosis.confidence:.0%}): {diagnosis.summary}",
        actor=actor,
        data={"reason": diagnosis.reason, "rule": diagnosis.rule, "source": diagnosis.source.value, "fingerprint": fingerprint},
        seconds=seconds,
        at=now,
    )
    if incident.state != IncidentState.VERIFIED.value or not move(
        session, incident, IncidentState.DIAGNOSING, "it happened again", actor=actor, at=now
    ):
        announce(session, incident, "incident.updated", now)
    return incident
