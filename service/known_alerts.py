"""What the store holds about the alerts of one notification, read with the same few statements however many they are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rules.identity import Directory, Subject
from rules.redaction import redact_text
from service.directory import directories_for
from service.incidents import JOIN_WINDOW_SECONDS, digest
from service.ingest.alertmanager import AlertMessage, epoch_or_none
from service.joining import APART, job_key, verdicts_on
from service.silences import active_silences
from service.store.database import pieces, select_in
from service.store.incidents import Alert, Failure, Incident, Silence

__all__ = ["FirstAlert", "KnownAlerts", "continues", "is_late", "name_of", "read_known"]

# As long as Alertmanager tries to deliver one notification; a firing that is older than that is not late, it fires again.
LATE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class FirstAlert:
    """An alert that continues none. `known`: what of its subject is known, `GPU` or `node`, empty where all stays text;
    `fingerprint`: that of the incident which it opens; `apart`: people keep it apart from the failures of its job."""

    labels: dict[str, str]
    annotations: dict[str, str]
    subject: Subject
    known: str
    fingerprint: str
    apart: bool = False


@dataclass(frozen=True, slots=True)
class KnownAlerts:
    """`places`: the newest alert of each fingerprint with its incident; `firsts`: alerts that continue none, by fingerprint;
    `failures`: open failures of jobs; `open`: incidents by the key that they are open under; `failed`: incidents that a job's
    failure is attached to, `firing`: how many alerts fire in each (both read where something is resolved)."""

    places: dict[str, tuple[Alert, Incident]]
    firsts: dict[str, FirstAlert]
    failures: dict[str, list[Incident]]
    open: dict[str, Incident]
    silences: Sequence[Silence]
    failed: set[Incident]
    firing: Counter[Incident]

    def failure_of(self, job: str) -> Incident | None:
        """The open failure of the job that was seen last."""
        still_open = [incident for incident in self.failures.get(job, ()) if incident.open_key is not None]
        return max(still_open, key=lambda incident: incident.last_seen, default=None)

    def open_under(self, key: str) -> Incident | None:
        """The incident that holds the key now; what was read holds it no longer where this notification closed it."""
        incident = self.open.get(key)
        return incident if incident is not None and incident.open_key == key else None


def continues(alert: Alert, incident: Incident, message: AlertMessage, now: float, hold_seconds: float) -> bool:
    """Whether the message is about the stored alert still: the same firing, or one soon after its incident was closed."""
    again = epoch_or_none(message.startsAt) == alert.starts_at
    return again or incident.closed_at is None or now - incident.closed_at <= hold_seconds


def is_late(alert: Alert, message: AlertMessage, now: float) -> bool:
    """Whether the message tells of what is over: the end of an earlier firing, or a firing whose end was heard first.

    A firing that was heard, and comes again after its end, fires again, also with the same start: so it does where Prometheus was
    away for a while. A delivery that came twice looks the same, and an open incident too many costs less than one too few.
    """
    starts_at, ends_at = epoch_or_none(message.startsAt), epoch_or_none(message.endsAt)
    if message.status == "resolved":
        earlier = starts_at is not None and starts_at < alert.starts_at
        return alert.status == "firing" and earlier and ends_at is not None and ends_at < alert.starts_at
    unheard = alert.status == "resolved" and alert.received == 1
    return unheard and starts_at == alert.starts_at and now - alert.last_received <= LATE_SECONDS


def read_known(
    session: Session, messages: Sequence[AlertMessage], subjects: Sequence[Subject], now: float, hold_seconds: float
) -> KnownAlerts:
    """Read all that deciding about the messages needs; `subjects` says whom each is about, in the words of its labels."""
    places = places_of(session, {message.fingerprint for message in messages})
    new: dict[str, tuple[AlertMessage, Subject]] = {}
    for message, subject in zip(messages, subjects, strict=True):
        place = places.get(message.fingerprint)
        if place is None or not continues(*place, message, now, hold_seconds):
            new.setdefault(message.fingerprint, (message, subject))
    firsts = firsts_of(session, new)
    failures = open_failures(session, {first.subject.job for first in firsts.values() if first.subject.job is not None}, now)
    any_resolved = any(message.status == "resolved" for message in messages)
    keys = {first.fingerprint for first in firsts.values()}
    keys |= {incident.fingerprint for _, incident in places.values() if any_resolved or incident.closed_at is not None}
    open_now = {str(incident.open_key): incident for incident in select_in(session, select(Incident), Incident.open_key, keys)}
    failed, firing = set[Incident](), Counter[Incident]()
    if any_resolved:
        involved = [
            *(place[1] for place in places.values()),
            *open_now.values(),
            *(one for some in failures.values() for one in some),
        ]
        failed, firing = attached(session, involved)
    return KnownAlerts(places, firsts, failures, open_now, active_silences(session, now) if firsts else (), failed, firing)


def places_of(session: Session, fingerprints: Iterable[str]) -> dict[str, tuple[Alert, Incident]]:
    newest = select_in(session, select(func.max(Alert.id)).group_by(Alert.fingerprint), Alert.fingerprint, fingerprints)
    alerts = {alert.fingerprint: alert for alert in select_in(session, select(Alert), Alert.id, newest)}
    of_alerts = {alert.incident_id for alert in alerts.values()}
    incidents = {incident.id: incident for incident in select_in(session, select(Incident), Incident.id, of_alerts)}
    return {fingerprint: (alert, incidents[alert.incident_id]) for fingerprint, alert in alerts.items()}


def firsts_of(session: Session, new: dict[str, tuple[AlertMessage, Subject]]) -> dict[str, FirstAlert]:
    directories = directories_for(session, {(subject.node, subject.gpu) for _, subject in new.values()})
    firsts = {}
    for fingerprint, (message, subject) in new.items():
        labels = {name: redact_text(value) for name, value in message.labels.items()}
        annotations = {name: redact_text(value) for name, value in message.annotations.items()}
        canonical, known = resolved(directories[subject.node, subject.gpu], subject)
        # Senders name one machine differently: where it is known, its id and the alert's name say what this is about.
        about = ("alert-about", name_of(labels), astuple(canonical)) if known else ("alert", fingerprint)
        firsts[fingerprint] = FirstAlert(labels, annotations, canonical, known, digest(*about))
    pairs = {(first.fingerprint, job_key(first.subject.job)) for first in firsts.values() if first.subject.job is not None}
    apart = {one for (one, _), decision in verdicts_on(session, pairs).items() if decision.verdict == APART}
    return {key: replace(first, apart=True) if first.fingerprint in apart else first for key, first in firsts.items()}


def resolved(directory: Directory, subject: Subject) -> tuple[Subject, str]:
    """The subject under canonical names, and what of it is known: `GPU` or `node`; empty where all stays text."""
    node = directory.node(subject.node) if subject.node else None
    gpu = directory.gpu(subject.gpu, node.id if node else None) if subject.gpu else None
    known = "GPU" if gpu and gpu.id else "node" if node and node.id and not subject.gpu else ""
    canonical = replace(
        subject,
        node=(node.id or subject.node) if node else None,
        gpu=(gpu.id or subject.gpu) if gpu else None,
    )
    return canonical, known


def open_failures(session: Session, jobs: Iterable[str], now: float) -> dict[str, list[Incident]]:
    """Of each job those that were seen within the time that joins."""
    recent = select(Incident).where(
        Incident.kind == "failure", Incident.open_key.is_not(None), Incident.last_seen >= now - JOIN_WINDOW_SECONDS
    )
    found: dict[str, list[Incident]] = defaultdict(list)
    for incident in select_in(session, recent, Incident.job, jobs):
        found[str(incident.job)].append(incident)
    return found


def attached(session: Session, incidents: Iterable[Incident]) -> tuple[set[Incident], Counter[Incident]]:
    """Which of these incidents a job's failure is attached to, and how many alerts fire in each."""
    by_id = {incident.id: incident for incident in incidents}
    failed = {by_id[number] for number in select_in(session, select(Failure.incident_id).distinct(), Failure.incident_id, by_id)}
    counted = select(Alert.incident_id, func.count()).where(Alert.status == "firing").group_by(Alert.incident_id)
    firing = {
        by_id[number]: count
        for some in pieces(by_id)
        for number, count in session.execute(counted.where(Alert.incident_id.in_(some)))
    }
    return failed, Counter(firing)


def name_of(labels: dict[str, str]) -> str:
    return labels.get("alertname", "without a name")
