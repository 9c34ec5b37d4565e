"""Sending what is owed through Apprise: claimed before it is sent, tried again with growing pauses, and shown where it fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import apprise
from sqlalchemy import select
from sqlalchemy.orm import Session

from rules.redaction import redact_text
from service.metrics import Metrics
from service.notifications.owed import note_changes
from service.notifications.routes import Routes
from service.store import Clock, Store
from service.store.access import Switch
from service.store.database import timestamp
from service.store.incidents import Incident
from service.store.jobs import Job
from service.store.recoveries import Notification

__all__ = ["Delivery", "Sent", "send_by_apprise"]

# Switch (service/store/access.py): how each channel fares, for the pages of every replica.
STANDING = "notifications.channels"
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 600.0
GIVE_UP_SECONDS = 24 * 3600.0
# A claim that nobody answered is free again: whoever held it died, perhaps after sending.
CLAIM_SECONDS = 60.0
# One round of the duties renews their lease; a round that sends must end well before it runs out.
ROUND_SECONDS = 4.0
BATCH = 50


@dataclass(frozen=True, slots=True)
class Sent:
    """`why` says what went wrong; empty where it went well."""

    well: bool
    why: str = ""


Sender = Callable[[str, str, str, str], Sent]
KINDS = {"SEV1": apprise.NotifyType.FAILURE, "SEV2": apprise.NotifyType.WARNING}


def send_by_apprise(url: str, title: str, text: str, severity: str) -> Sent:
    """One message to one channel. The text is quoted as plain text: what a log line holds formats nothing."""
    courier = apprise.Apprise()
    courier.add(url)
    capture: Any = apprise.LogCapture
    with capture(level=logging.WARNING, fmt="%(message)s") as said:
        well = courier.notify(
            body=text,
            title=title,
            notify_type=KINDS.get(severity, apprise.NotifyType.INFO),
            body_format=apprise.NotifyFormat.TEXT,
        )
        why = said.getvalue().strip()
    return (
        Sent(True)
        if well
        else Sent(False, redact_text(why.replace(url, "URL").splitlines()[0])[:300].rstrip(".") if why else "not taken")
    )


@dataclass(frozen=True, slots=True)
class Claimed:
    """A message in this round, with what routes go by."""

    id: int
    text: str
    title: str
    severity: str
    created_at: float
    tries: dict[str, Any]


@dataclass(slots=True)
class Delivery:
    """The duty. `public_url`: where people reach the dashboard, for the link in each message."""

    store: Store
    clock: Clock
    routes: Routes
    public_url: str | None
    metrics: Metrics
    send: Sender = send_by_apprise
    elapsed: Callable[[], float] = time.monotonic
    _standing: dict[str, dict[str, Any]] = field(default_factory=dict)

    def work(self) -> None:
        """Note what is owed, then send what is due until the round's time is used up."""
        now = self.clock()
        with self.store.writing() as session:
            note_changes(session, self.routes.quiet_seconds, now)
            row = session.get(Switch, STANDING)
            self._standing = {name: state for name, state in (row.value if row else {}).items() if name in self.routes.channels}
            claimed = self._claim(session, now)
        begun = self.elapsed()
        for message in claimed:
            for name, tried in message.tries.items():
                if tried["state"] == "waiting" and self.elapsed() - begun < ROUND_SECONDS:
                    self._try(message, name, tried)
            self._settle(message)

    def _claim(self, session: Session, now: float) -> list[Claimed]:
        due = select(Notification).where(Notification.due_at <= now).order_by(Notification.due_at, Notification.id).limit(BATCH)
        claimed = []
        for row in session.scalars(due).all():
            if not row.channels and now - row.created_at > GIVE_UP_SECONDS:
                # Stored before anybody asked to be told, or held by a silence ever since: no news any more.
                row.due_at = None
                continue
            incident = None if row.incident_id is None else session.get_one(Incident, row.incident_id)
            if incident is not None and incident.silenced_until is not None and incident.silenced_until > now:
                row.due_at = incident.silenced_until
                continue
            job = session.get(Job, row.job) if row.job else None
            facts = {
                "audience": row.audience,
                "job": row.job,
                "owner": job.owner if job else None,
                "project": job.project if job else None,
                "reason": incident.reason if incident else None,
                "severity": incident.severity if incident else None,
                "state": row.state or (incident.state if incident else None),
            }
            tries = {name: dict(tried) for name, tried in row.channels.items() if name in self.routes.channels}
            for name in self.routes.channels_for(facts):
                tries.setdefault(name, {"state": "waiting", "attempts": 0})
            row.due_at = now + CLAIM_SECONDS
            text = row.text
            if self.public_url:
                text += f"\n{self.public_url.rstrip('/')}{'/report' if incident is None else f'/incidents/{incident.id}'}"
            severity = incident.severity if incident else "NONE"
            claimed.append(Claimed(row.id, text, title_of(incident), severity, row.created_at, tries))
        return claimed

    def _try(self, message: Claimed, name: str, tried: dict[str, Any]) -> None:
        now = self.clock()
        standing = self._standing.setdefault(name, {"failures": 0, "retry_at": 0.0, "error": "", "sent_at": None})
        # A channel that fails is asked by one message at a time, not by all that wait for it.
        if now < standing["retry_at"]:
            return
        sent = self.send(self.routes.channels[name], message.title, message.text, message.severity)
        tried["attempts"] += 1
        self.metrics.notifications.labels("sent" if sent.well else "failed").inc()
        if sent.well:
            tried |= {"state": "sent", "at": timestamp(now)}
            tried.pop("error", None)
            standing |= {"failures": 0, "retry_at": 0.0, "error": "", "sent_at": now}
            return
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(standing["failures"], 10))
        standing |= {"failures": standing["failures"] + 1, "retry_at": now + pause, "error": sent.why}
        tried["error"] = sent.why
        if now - message.created_at > GIVE_UP_SECONDS:
            tried["state"] = "given up"

    def _settle(self, message: Claimed) -> None:
        """Write down what became of a message as soon as it is known."""
        now = self.clock()
        waiting = [name for name, tried in message.tries.items() if tried["state"] == "waiting"]
        with self.store.writing() as session:
            row = session.get_one(Notification, message.id)
            row.channels = message.tries
            again = min((self._standing.get(name, {}).get("retry_at", 0.0) for name in waiting), default=0.0)
            row.due_at = max(now, again) if waiting else None
            session.merge(Switch(name=STANDING, value=self._standing, set_by="notifications", set_at=now))

    def report(self) -> dict[str, Any]:
        """Each channel: `ok`, or what is wrong with it and when it is tried again. Never its URL."""
        with self.store.reading() as session:
            row = session.get(Switch, STANDING)
        known = row.value if row else {}
        return {name: channel_report(known.get(name)) for name in self.routes.channels}


def title_of(incident: Incident | None) -> str:
    if incident is None:
        return "Pitstop: the week"
    place = incident.job or incident.node
    return f"[{incident.severity}] {incident.reason}{f' on {place}' if place else ''}"


def channel_report(standing: dict[str, Any] | None) -> dict[str, Any]:
    if standing is None:
        return {"state": "nothing sent yet", "failures": 0}
    if not standing["failures"]:
        return {"state": "ok", "failures": 0, "sent_at": timestamp(standing["sent_at"])}
    return {
        "state": f"failing: {standing['error']}",
        "failures": standing["failures"],
        "retry_at": timestamp(standing["retry_at"]),
        "sent_at": timestamp(standing["sent_at"]),
    }
