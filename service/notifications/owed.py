"""What people are owed: a message for each change of an incident's state, once per fault, quiet where it repeats."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.access import Switch
from service.store.events import Event, events_after, last_event_id
from service.store.incidents import Incident
from service.store.recoveries import Notification
from service.timeline import IncidentState

__all__ = ["note_changes"]

# Switch (service/store/access.py): the newest event that was looked at.
CURSOR = "notifications.cursor"
KINDS = frozenset({"incident.opened", "incident.updated", "incident.resolved"})
# The audience of a change that is kept quiet.
NOBODY = "nobody"
EARLY = frozenset({IncidentState.DETECTED.value, IncidentState.DIAGNOSING.value})


def note_changes(session: Session, quiet_seconds: float, now: float) -> None:
    """Turn the next events into stored messages, in the transaction that moves the cursor past them.

    The first time it only marks where it begins: what happened before anybody asked to be told is not told.
    """
    cursor = session.get(Switch, CURSOR)
    if cursor is None:
        session.add(Switch(name=CURSOR, value={"after": last_event_id(session)}, set_by="notifications", set_at=now))
        return
    after = cursor.value["after"]
    events = events_after(session, after)
    for event in events:
        if event.kind in KINDS:
            note_change(session, event, quiet_seconds, now)
    if events:
        cursor.value, cursor.set_at = {"after": events[-1].id}, now


def note_change(session: Session, event: Event, quiet_seconds: float, now: float) -> None:
    told = event.data
    # A failure without a cause yet: its verdict follows in a moment, under the fingerprint that stays.
    early = told["kind"] == "failure" and told["state"] in EARLY and told["confidence"] == 0.0
    incident = session.get(Incident, int(told["id"]))
    if incident is None or told["merged_into"] is not None or early:
        return
    fingerprint, state = told["fingerprint"], told["state"]
    newest = select(Notification).where(Notification.fingerprint == fingerprint).order_by(Notification.id.desc()).limit(1)
    last = session.scalar(newest)
    if last is not None and last.state == state:
        return
    same = session.scalar(newest.where(Notification.state == state, Notification.audience != NOBODY))
    repeated = same is not None and now - same.created_at < quiet_seconds
    # Kept quiet it is still a change: what follows is judged against it. Somebody must answer a question each time.
    quiet = repeated and state != IncidentState.WAITING_FOR_APPROVAL.value
    where = ", ".join(str(told[name]) for name in ("job", "node", "gpu") if told[name])
    session.add(
        Notification(
            key=f"state/{event.id}",
            incident_id=incident.id,
            job=told["job"],
            audience=NOBODY if quiet else "operators",
            recipient="told before" if quiet else None,
            text=f"{state.replace('_', ' ')}: {told['reason']}{f' ({where})' if where else ''}: {told['summary']}",
            channels={},
            created_at=now,
            fingerprint=fingerprint,
            state=state,
            due_at=None if quiet else now,
        )
    )
    session.flush()
