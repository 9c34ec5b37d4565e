"""The life of a learnt rule: proposed, judged by the gate, in shadow, in use, rolled back; each change with who made it and why.

In shadow a rule is counted and acts on nothing. Every change is one transaction with its audit entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rules.learnt import LEARNT_PREFIX
from rules.pack import Examples, Rule, RuleRole
from service.store.access import audit
from service.store.candidates import CandidateHit, CandidateRow
from service.store.database import hold_lock, timestamp
from service.store.events import publish_event

__all__ = [
    "ALIVE",
    "CandidateState",
    "Origin",
    "StateError",
    "approve",
    "candidate_document",
    "hits_of",
    "in_state",
    "move_candidate",
    "propose",
    "roll_back",
    "rule_of",
    "step_back",
]

LOCK = "candidates"


class CandidateState(StrEnum):
    """How far a candidate has come. `superseded`: a newer version is in use."""

    PROPOSED = "proposed"
    REFUSED = "refused"
    SHADOW = "shadow"
    ACTIVE = "active"
    SUPERSEDED = "superseded"
    ROLLED_BACK = "rolled_back"


class Origin(StrEnum):
    """Who made the candidate."""

    OPERATOR = "operator"
    CONFIRMATION = "confirmation"
    LOG_AGENT = "log_agent"


# States in which a rule looks at incidents.
ALIVE = (CandidateState.SHADOW, CandidateState.ACTIVE)


class StateError(ValueError):
    """What was asked does not fit the candidate's state; the message says what it is."""


def in_state(session: Session, *states: CandidateState) -> Sequence[CandidateRow]:
    """Candidates in these states, oldest first."""
    wanted = [state.value for state in states]
    return session.scalars(select(CandidateRow).where(CandidateRow.state.in_(wanted)).order_by(CandidateRow.id)).all()


def rule_of(row: CandidateRow) -> Rule:
    """The candidate as a rule; the lines that it was made from are its examples."""
    return Rule(
        code=row.code,
        title=row.title,
        pack="learnt",
        role=RuleRole(row.role),
        reason=row.reason,
        any=(row.pattern,),
        weight=50,
        examples=Examples(tuple(row.cited)),
    )


def propose(
    session: Session,
    *,
    pattern: str,
    reason: str | None,
    title: str,
    cited: Sequence[str],
    origin: Origin,
    provenance: Mapping[str, Any],
    by: str,
    now: float,
    role: RuleRole = RuleRole.ROOT,
    scope: Mapping[str, str] | None = None,
    replaces: CandidateRow | None = None,
) -> CandidateRow | None:
    """A new candidate, or a new version of the one that it replaces. None where this pattern was proposed for this reason before:
    what people rolled back or the gate refused does not come back by itself."""
    hold_lock(session, LOCK)
    same = select(CandidateRow.id).where(
        CandidateRow.pattern == pattern, CandidateRow.role == role.value, CandidateRow.reason.is_not_distinct_from(reason)
    )
    if origin is not Origin.OPERATOR and session.scalar(same.limit(1)) is not None:
        return None
    code, version = None, 1
    if replaces is not None:
        code = replaces.code
        newest = session.scalar(select(func.max(CandidateRow.version)).where(CandidateRow.code == code)) or 0
        version = newest + 1
    row = CandidateRow(
        code=code or "",
        version=version,
        state=CandidateState.PROPOSED.value,
        role=role.value,
        reason=reason,
        title=title[:400],
        pattern=pattern,
        cited=list(cited),
        origin=origin.value,
        provenance=dict(provenance),
        scope=dict(scope or {}),
        judged=None,
        history=[],
        created_at=now,
        changed_at=now,
    )
    session.add(row)
    session.flush()
    row.code = row.code or f"{LEARNT_PREFIX}{row.id:04d}"
    record(session, row, by, f"proposed from {origin.value.replace('_', ' ')}", now)
    return row


def record(session: Session, row: CandidateRow, by: str, why: str, now: float) -> None:
    row.history = [*row.history, {"state": row.state, "by": by, "why": why, "at": now}]
    row.changed_at = now
    audit(session, by, f"rule.{row.state}", f"{row.code} v{row.version}", why, {"candidate": row.id}, now)
    publish_event(session, "rule.changed", row.code, {"state": row.state, "version": row.version, "by": by, "why": why}, now)


def move_candidate(session: Session, row: CandidateRow, state: CandidateState, by: str, why: str, now: float) -> None:
    """Bring the candidate to `state`. One version of a rule is in use at a time: the one before is set aside."""
    hold_lock(session, LOCK)
    row.state = state.value
    record(session, row, by, why, now)
    if state is CandidateState.ACTIVE:
        for other in in_state(session, CandidateState.ACTIVE):
            if other.code == row.code and other.id != row.id:
                other.state = CandidateState.SUPERSEDED.value
                record(session, other, by, f"version {row.version} is in use instead", now)


def approve(session: Session, row: CandidateRow, by: str, why: str, now: float) -> None:
    """An operator puts a rule into use that the gate let through. Raises StateError."""
    if row.state != CandidateState.SHADOW:
        raise StateError(f"{row.code} is {row.state.replace('_', ' ')}: only what is in shadow can be put into use")
    move_candidate(session, row, CandidateState.ACTIVE, by, why or "approved", now)


def step_back(session: Session, row: CandidateRow, by: str, why: str, now: float) -> None:
    """From use back to shadow: it is counted again, and acts on nothing. Raises StateError."""
    if row.state != CandidateState.ACTIVE:
        raise StateError(f"{row.code} is {row.state.replace('_', ' ')}: only what is in use can step back")
    move_candidate(session, row, CandidateState.SHADOW, by, why, now)


def roll_back(session: Session, row: CandidateRow, by: str, why: str, now: float) -> CandidateRow | None:
    """Take the rule out of use and out of shadow; the version that was in use before it, if any, is used again (and returned).

    Raises StateError.
    """
    if row.state not in ALIVE:
        raise StateError(f"{row.code} is {row.state.replace('_', ' ')}: there is nothing to roll back")
    was_in_use = row.state == CandidateState.ACTIVE
    move_candidate(session, row, CandidateState.ROLLED_BACK, by, why or "rolled back", now)
    before = session.scalar(
        select(CandidateRow)
        .where(
            CandidateRow.code == row.code,
            CandidateRow.version < row.version,
            CandidateRow.state == CandidateState.SUPERSEDED.value,
        )
        .order_by(CandidateRow.version.desc())
        .limit(1)
    )
    if was_in_use and before is not None:
        move_candidate(session, before, CandidateState.ACTIVE, by, f"version {row.version} was rolled back", now)
        return before
    return None


def hits_of(session: Session, candidate_id: int) -> Sequence[CandidateHit]:
    """What the candidate found, newest first."""
    query = select(CandidateHit).where(CandidateHit.candidate_id == candidate_id).order_by(CandidateHit.id.desc())
    return session.scalars(query).all()


def candidate_document(session: Session, row: CandidateRow) -> dict[str, Any]:
    """A candidate as the API shows it."""
    hits = hits_of(session, row.id)
    return {
        "id": str(row.id),
        "code": row.code,
        "version": row.version,
        "state": row.state,
        "role": row.role,
        "reason": row.reason,
        "title": row.title,
        "pattern": row.pattern,
        "cited": row.cited,
        "origin": row.origin,
        "provenance": row.provenance,
        "scope": row.scope,
        "judged": row.judged,
        "history": [entry | {"at": timestamp(entry["at"])} for entry in row.history],
        "hits": {
            "total": len(hits),
            "agreeing": sum(hit.agrees is True for hit in hits),
            "contradicting": sum(hit.agrees is False for hit in hits),
        },
        "created_at": timestamp(row.created_at),
        "changed_at": timestamp(row.changed_at),
    }
