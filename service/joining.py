"""Joining and dividing incidents, and what people decided about it before."""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.store import Base
from service.store.incidents import Incident, JoinDecision
from service.timeline import IncidentState, add_timeline, announce

__all__ = ["APART", "TOGETHER", "job_key", "merge", "remember", "verdict_on"]

TOGETHER = "together"
APART = "apart"


def job_key(job: str | None) -> str:
    """The key that stands for all failures of a job in a decision."""
    return f"job:{job}"[:128]


def verdict_on(session: Session, one: str, other: str) -> JoinDecision | None:
    """What a person decided about these two keys, in either order."""
    first, second = sorted((one, other))
    return session.scalar(select(JoinDecision).where(JoinDecision.one == first, JoinDecision.other == second))


def remember(session: Session, one: str, other: str, verdict: str, *, by: str, comment: str, now: float) -> None:
    """Keep a decision; a later one about the same two replaces it."""
    decision = verdict_on(session, one, other)
    if decision is None:
        first, second = sorted((one, other))
        decision = JoinDecision(one=first, other=second)
        session.add(decision)
    decision.verdict, decision.by, decision.comment, decision.at = verdict, by, comment, now


def merge(session: Session, source: Incident, target: Incident, why: str, *, actor: str = "pitstop", now: float) -> None:
    """Move everything that `source` gathered to `target`; `source` stays behind, closed, and points there."""
    session.flush()
    for table in Base.metadata.tables.values():
        if "incident_id" in table.c and table.name != "implications":
            session.execute(update(table).where(table.c.incident_id == source.id).values(incident_id=target.id))
    session.expire_all()
    target.occurrences += source.occurrences
    target.first_seen = min(target.first_seen, source.first_seen)
    target.last_seen = max(target.last_seen, source.last_seen)
    source.merged_into = target.id
    source.state = IncidentState.RESOLVED.value
    source.open_key = None
    source.closed_at = now
    data = {"from": source.id, "why": why}
    add_timeline(session, target.id, "joined", f"incident {source.id} joined: {why}", actor=actor, data=data, at=now)
    announce(session, source, "incident.resolved", now)
    announce(session, target, "incident.updated", now)
