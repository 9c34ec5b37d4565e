"""Alerts become signals of trust `cluster`: one incident per alert fingerprint, or part of the open failure of the same job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from rules.identity import subject_of
from service.incidents import JOIN_WINDOW_SECONDS, new_incident
from service.ingest.alertmanager import AlertMessage, Notification, epoch_or_none
from service.known_alerts import FirstAlert, KnownAlerts, continues, is_late, name_of, read_known
from service.silences import silence_by
from service.store.database import hold_lock
from service.store.incidents import Alert, Incident
from service.timeline import Entry, IncidentState, add_entries, announce, enter, moved

__all__ = ["Received", "receive_alerts"]

ACTOR = "alertmanager"


@dataclass(frozen=True, slots=True)
class Received:
    """What one notification did."""

    firing: int
    resolved: int
    incidents: tuple[int, ...]


def receive_alerts(
    session: Session, notification: Notification, now: float, *, job_keys: Sequence[str], hold_seconds: float
) -> Received:
    """Apply every alert of a notification, in its order, with about as many statements for a thousand as for one.
    `hold_seconds`: an alert that fires again within it reopens its incident."""
    messages = notification.alerts
    subjects = [subject_of(message.labels, job_keys) for message in messages]
    # Failures of the same jobs join or are joined: what they do has to be seen here, and the other way round.
    hold_lock(session, "alerts", *(f"job:{subject.job}" for subject in subjects if subject.job is not None))
    known = read_known(session, messages, subjects, now, hold_seconds)
    receipt = Receipt(session, known, notification.groupKey, now, hold_seconds)
    touched = dict.fromkeys(receipt.take(message) for message in messages)
    receipt.write()
    firing = sum(message.status == "firing" for message in messages)
    return Received(firing, len(messages) - firing, tuple(incident.id for incident in touched))


@dataclass(slots=True)
class Receipt:
    """Takes the alerts of one notification one after the other in memory, then writes all of it at once."""

    session: Session
    known: KnownAlerts
    group_key: str
    now: float
    hold_seconds: float
    _story: list[Entry] = field(default_factory=list, init=False)
    # Incidents to announce, each once, in its final state.
    _changed: dict[Incident, None] = field(default_factory=dict, init=False)
    _opened: set[Incident] = field(default_factory=set, init=False)
    _closed: set[Incident] = field(default_factory=set, init=False)
    # Keys that the store still gives to an incident that was closed here.
    _released: set[str] = field(default_factory=set, init=False)

    def take(self, message: AlertMessage) -> Incident:
        """Apply one alert; the incident that it is now part of."""
        place = self.known.places.get(message.fingerprint)
        if place is None or not continues(*place, message, self.now, self.hold_seconds):
            return self._take_first(message, self.known.firsts[message.fingerprint])
        alert, incident = place
        was_firing = alert.status == "firing"
        late = is_late(alert, message, self.now)
        alert.received += 1
        alert.last_received = self.now
        if late:
            text = f"alert {name_of(alert.labels)}, {message.status}: came late, after what followed it; nothing changes"
            self._story.append(Entry(incident, "alert", text, ACTOR))
            self._changed[incident] = None
            return incident
        alert.status = message.status
        alert.starts_at = epoch_or_none(message.startsAt) or self.now
        alert.ends_at = epoch_or_none(message.endsAt)
        self.known.firing[incident] -= was_firing
        if message.status == "resolved":
            if was_firing:
                self._resolve(incident, alert)
            return incident
        same = self.known.open_under(incident.fingerprint)
        if incident.closed_at is not None and same is not None:
            # Meanwhile another alert about the same thing opened an incident.
            incident = same
            self.known.places[message.fingerprint] = (alert, incident)
        self.known.firing[incident] += 1
        incident.last_seen = max(incident.last_seen, self.now)
        incident.occurrences += 1
        again = f"alert {name_of(alert.labels)} fires again"
        if incident.closed_at is not None:
            self._claim(incident.fingerprint, incident)
            self._move(incident, IncidentState.DETECTED, again)
        elif not was_firing:
            self._story.append(Entry(incident, "alert", again, ACTOR))
        self._changed[incident] = None
        return incident

    def _take_first(self, message: AlertMessage, first: FirstAlert) -> Incident:
        starts_at = epoch_or_none(message.startsAt) or self.now
        text = describe(first.labels, first.annotations)
        incident, why = self._joinable(first)
        if incident is None:
            incident = self._open(first, text, starts_at)
        else:
            incident.last_seen = self.now
            self._story.append(Entry(incident, "joined", f"alert {text} (joined: {why})", ACTOR, {"why": why}))
        alert = Alert(
            fingerprint=message.fingerprint,
            status=message.status,
            group_key=self.group_key,
            labels=first.labels,
            annotations=first.annotations,
            starts_at=starts_at,
            ends_at=epoch_or_none(message.endsAt),
            generator_url=message.generatorURL,
            received=1,
            first_received=self.now,
            last_received=self.now,
        )
        # Behind those that were taken before: the newest alert of an incident is the one that was heard of last.
        self.known.places.pop(message.fingerprint, None)
        self.known.places[message.fingerprint] = (alert, incident)
        silence_by(self.known.silences, incident, first.labels)
        self._changed[incident] = None
        if message.status == "resolved":
            # We were not there when it fired; what happened is kept all the same.
            self._resolve(incident, alert)
        else:
            self.known.firing[incident] += 1
        return incident

    def _joinable(self, first: FirstAlert) -> tuple[Incident | None, str]:
        """The open incident that the alert is part of, and why."""
        job = first.subject.job
        incident = self.known.failure_of(job) if job is not None and not first.apart else None
        if incident is not None:
            return incident, f"job {job} has an open failure of the last {JOIN_WINDOW_SECONDS / 60:.0f} minutes"
        incident = self.known.open_under(first.fingerprint)
        if incident is not None:
            incident.occurrences += 1
        return incident, f"{name_of(first.labels)} about the same {first.known}" if first.known else "the same alert"

    def _open(self, first: FirstAlert, text: str, starts_at: float) -> Incident:
        subject = first.subject
        incident = new_incident(
            kind="alert",
            fingerprint=first.fingerprint,
            summary=text,
            now=self.now,
            seen_at=starts_at,
            job=subject.job,
            node=subject.node,
            gpu=subject.gpu,
            rank=None if subject.rank is None else str(subject.rank),
        )
        self._claim(first.fingerprint, incident)
        self.session.add(incident)
        self._opened.add(incident)
        self._story.append(Entry(incident, "detected", text))
        return incident

    def _resolve(self, incident: Incident, alert: Alert) -> None:
        """The alert's condition is over: its incident closes, unless a job's failure or an alert that fires is attached."""
        text = f"alert {name_of(alert.labels)} is resolved"
        self._story.append(Entry(incident, "resolved", text, ACTOR, {"alert": alert.fingerprint}))
        self._changed[incident] = None
        if incident not in self.known.failed and not self.known.firing[incident]:
            if incident.open_key is not None:
                self._released.add(incident.open_key)
            self._closed.add(incident)
            self._move(incident, IncidentState.RESOLVED, text)

    def _move(self, incident: Incident, state: IncidentState, why: str) -> None:
        if enter(incident, state, self.now):
            text, data = moved(state, why)
            self._story.append(Entry(incident, "state", text, ACTOR, data))

    def _claim(self, key: str, incident: Incident) -> None:
        """Let `incident` be the one that is open under `key`."""
        if key in self._released:
            # One statement could otherwise give the key away before another has taken it back.
            self.session.flush()
            self._released.clear()
        self.known.open[key] = incident

    def write(self) -> None:
        """Store what was taken, tell it on the timelines, and announce each changed incident once."""
        self.session.flush()
        new = []
        for alert, incident in self.known.places.values():
            if alert.incident_id != incident.id:
                alert.incident_id = incident.id
                if alert not in self.session:
                    new.append(alert)
        self.session.bulk_save_objects(new)
        add_entries(self.session, self._story, self.now)
        for incident in self._changed:
            is_new, is_closed = incident in self._opened, incident in self._closed and incident.closed_at is not None
            if is_new:
                announce(self.session, incident, "incident.opened", self.now)
            if is_closed:
                announce(self.session, incident, "incident.resolved", self.now)
            elif not is_new:
                announce(self.session, incident, "incident.updated", self.now)


def describe(labels: dict[str, str], annotations: dict[str, str]) -> str:
    said = annotations.get("summary") or annotations.get("description")
    return f"{name_of(labels)}: {said}" if said else name_of(labels)
