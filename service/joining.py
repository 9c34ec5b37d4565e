"""Joining and dividing incidents, and what people decided about it before."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.store import Base
from service.store.database import select_in
from service.store.incidents import Incident, JoinDecision
from service.timeline import IncidentState, add_timeline, announce

__all__ = ["APART", "TOGETHER", "job_key", "merge", "remember", "verdict_on", "verdicts_on"]

TOGETHER = "together"
APART = "apart"


def job_key(job: str | None) -> str:
    """The key that stands for all failures of a job in a decision."""
    return f"job:{job}"[:128]


def either_way(one: str, other: str) -> tuple[str, str]:
    """How a decision about the two is stored, in whichever order they are named."""
    return (one, other) if one <= other else (other, one)


def verdict_on(session: Session, one: str, other: str) -> JoinDecision | None:
    """What a person decided about these two keys, in either order."""
    return verdicts_on(session, [(one, other)]).get((one, other))


def verdicts_on(session: Session, pairs: Collection[tuple[str, str]]) -> dict[tuple[str, str], JoinDecision]:
    """What people decided about pairs of keys, each in either order: those that there is a decision about."""
    asked = {pair: either_way(*pair) for pair in pairs}
    found = select_in(session, select(JoinDecision), JoinDecision.one, {first for first, _ in asked.values()})
    decisions = {(decision.one, decision.other): decision for decision in found}
    return {pair: decisions[key] for pair, key in asked.items() if key in decisions}


def remember(session: Session, one: str, other: str, verdict: str, *, by: str, comment: str, now: float) -> None:
    """Keep a decision; a later one about the same two replaces it."""
    decision = verdict_on(session, one, other)
    if decision is None:
        first, second = either_way(one, other)
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
