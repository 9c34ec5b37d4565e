"""Writing an incident's story: timeline entries and state changes, each announced with the transaction that makes it true."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from service.store.database import timestamp
from service.store.events import publish_event
from service.store.incidents import Incident, TimelineEntry

__all__ = ["Entry", "IncidentState", "add_entries", "add_timeline", "announce", "enter", "incident_document", "move", "moved"]


class IncidentState(StrEnum):
    """How far an incident has come. Resolved is closed; all others are open."""

    DETECTED = "detected"
    DIAGNOSING = "diagnosing"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    RECOVERING = "recovering"
    VERIFIED = "verified"
    RESOLVED = "resolved"


def incident_document(incident: Incident) -> dict[str, Any]:
    """An incident as the API and its events show it, without timeline and evidence."""
    return {
        "id": str(incident.id),
        "kind": incident.kind,
        "state": incident.state,
        "severity": incident.severity,
        "reason": incident.reason,
        "category": incident.category,
        "component": incident.component,
        "remedy": incident.remedy,
        "summary": incident.summary,
        "source": incident.source,
        "confidence": incident.confidence,
        "rule": incident.rule,
        "job": incident.job,
        "attempt": incident.attempt,
        "node": incident.node,
        "gpu": incident.gpu,
        "rank": incident.rank,
        "link": incident.link,
        "occurrences": incident.occurrences,
        "first_seen": timestamp(incident.first_seen),
        "last_seen": timestamp(incident.last_seen),
        "closed_at": timestamp(incident.closed_at),
        "fingerprint": incident.fingerprint,
        "silenced_until": timestamp(incident.silenced_until),
        "merged_into": None if incident.merged_into is None else str(incident.merged_into),
    }


def announce(session: Session, incident: Incident, kind: str, at: float | None = None) -> None:
    """Publish the incident as it now stands; `kind` is `incident.opened`, `incident.updated` or `incident.resolved`."""
    session.flush()
    publish_event(session, kind, str(incident.id), incident_document(incident), at)


def add_timeline(
    session: Session,
    incident_id: int,
    kind: str,
    text: str,
    *,
    actor: str = "pitstop",
    data: dict[str, Any] | None = None,
    seconds: float | None = None,
    at: float | None = None,
) -> TimelineEntry:
    """Write an entry and announce it as `incident.timeline`. `seconds`: how long the step took."""
    entry = TimelineEntry(
        incident_id=incident_id,
        time=time.time() if at is None else at,
        kind=kind,
        actor=actor,
        text=text,
        data=data or {},
        seconds=seconds,
    )
    session.add(entry)
    publish_event(session, "incident.timeline", str(incident_id), {"kind": kind, "actor": actor, "text": text}, entry.time)
    return entry


@dataclass(frozen=True, slots=True)
class Entry:
    """A timeline entry to be: its incident may not have an id yet."""

    incident: Incident
    kind: str
    text: str
    actor: str = "pitstop"
    data: dict[str, Any] = field(default_factory=dict)


def add_entries(session: Session, entries: Sequence[Entry], at: float) -> None:
    """Write and announce many entries as `add_timeline` does one, with one statement. Their incidents are stored by now."""
    rows = []
    for entry in entries:
        told = {"kind": entry.kind, "actor": entry.actor, "text": entry.text}
        rows.append({"incident_id": entry.incident.id, "time": at, "data": entry.data, **told})
        publish_event(session, "incident.timeline", str(entry.incident.id), told, at)
    if rows:
        session.connection().execute(insert(TimelineEntry), rows)


def move(
    session: Session, incident: Incident, state: IncidentState, why: str, *, actor: str = "pitstop", at: float | None = None
) -> bool:
    """Bring the incident to `state`, saying who or what did it and why. False where it is there already."""
    now = time.time() if at is None else at
    if not enter(incident, state, now):
        return False
    text, data = moved(state, why)
    add_timeline(session, incident.id, "state", text, actor=actor, data=data, at=now)
    announce(session, incident, "incident.resolved" if state is IncidentState.RESOLVED else "incident.updated", now)
    return True


def enter(incident: Incident, state: IncidentState, now: float) -> bool:
    """Put the incident into `state`, closing or reopening it, and tell nobody yet. False where it is there already."""
    if incident.state == state:
        return False
    incident.state = state.value
    if state is IncidentState.RESOLVED:
        incident.open_key = None
        incident.closed_at = now
    elif incident.closed_at is not None:
        incident.closed_at = None
        incident.open_key = incident.fingerprint
    return True


def moved(state: IncidentState, why: str) -> tuple[str, dict[str, Any]]:
    """Text and data of the timeline entry of a change of state."""
    return f"{state.value.replace('_', ' ')}: {why}", {"state": state.value}
