"""Alerts become signals of trust `cluster`: one incident per alert fingerprint, or part of the open failure of the same job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from rules.identity import Subject, subject_of
from rules.redaction import redact_text
from service.directory import directory_for
from service.incidents import JOIN_WINDOW_SECONDS, digest, open_incident
from service.ingest.alertmanager import AlertMessage, Notification, epoch_or_none
from service.joining import APART, job_key, verdict_on
from service.silences import apply_silences
from service.store.database import hold_lock
from service.store.incidents import Alert, Failure, Incident
from service.timeline import IncidentState, add_timeline, announce, move

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
    """Apply every alert of a notification. `hold_seconds`: an alert that fires again within it reopens its incident."""
    touched: dict[int, None] = {}
    firing = 0
    for message in notification.alerts:
        hold_lock(session, f"alert:{message.fingerprint}")
        known = session.scalar(select(Alert).where(Alert.fingerprint == message.fingerprint).order_by(Alert.id.desc()).limit(1))
        firing += message.status == "firing"
        incident = apply_alert(session, known, message, notification.groupKey, now, job_keys, hold_seconds)
        touched[incident.id] = None
    return Received(firing, len(notification.alerts) - firing, tuple(touched))


def apply_alert(
    session: Session,
    known: Alert | None,
    message: AlertMessage,
    group_key: str,
    now: float,
    job_keys: Sequence[str],
    hold_seconds: float,
) -> Incident:
    alert, incident = known, None
    if alert is not None:
        incident = session.get_one(Incident, alert.incident_id)
        again = epoch_or_none(message.startsAt) == alert.starts_at
        held = incident.closed_at is None or now - incident.closed_at <= hold_seconds
        if not again and not held:
            alert = incident = None
    if alert is None or incident is None:
        return first_alert(session, message, group_key, now, subject_of(message.labels, job_keys))
    was_firing = alert.status == "firing"
    alert.received += 1
    alert.last_received = now
    alert.status = message.status
    alert.starts_at = epoch_or_none(message.startsAt) or now
    alert.ends_at = epoch_or_none(message.endsAt)
    if message.status == "resolved":
        if was_firing:
            resolve(session, incident, alert, now)
        return incident
    same = session.scalar(select(Incident).where(Incident.open_key == incident.fingerprint, Incident.id != incident.id))
    if incident.closed_at is not None and same is not None:
        # Meanwhile another alert about the same thing opened an incident.
        alert.incident_id = same.id
        incident = same
    incident.last_seen = max(incident.last_seen, now)
    incident.occurrences += 1
    if incident.closed_at is not None:
        move(session, incident, IncidentState.DETECTED, f"alert {name_of(alert.labels)} fires again", actor=ACTOR, at=now)
    elif not was_firing:
        add_timeline(session, incident.id, "alert", f"alert {name_of(alert.labels)} fires again", actor=ACTOR, at=now)
    announce(session, incident, "incident.updated", now)
    return incident


def first_alert(session: Session, message: AlertMessage, group_key: str, now: float, subject: Subject) -> Incident:
    labels = {name: redact_text(value) for name, value in message.labels.items()}
    annotations = {name: redact_text(value) for name, value in message.annotations.items()}
    starts_at = epoch_or_none(message.startsAt) or now
    subject, known = resolved(session, subject)
    # Senders name one machine differently: where it is known, its id and the alert's name say what this is about.
    fingerprint = digest("alert-about", name_of(labels), astuple(subject)) if known else digest("alert", message.fingerprint)
    apart = verdict_on(session, fingerprint, job_key(subject.job)) if subject.job else None
    joinable = apart is None or apart.verdict != APART
    incident, why = open_failure_of(session, subject.job if joinable else None, now)
    if incident is None and known:
        incident = session.scalar(select(Incident).where(Incident.open_key == fingerprint))
        why = f"{name_of(labels)} about the same {known}"
        if incident is not None:
            incident.occurrences += 1
    text = describe(labels, annotations)
    if incident is None:
        incident = open_incident(
            session,
            kind="alert",
            fingerprint=fingerprint,
            summary=text,
            now=now,
            seen_at=starts_at,
            job=subject.job,
            node=subject.node,
            gpu=subject.gpu,
            rank=None if subject.rank is None else str(subject.rank),
        )
    else:
        incident.last_seen = now
        add_timeline(session, incident.id, "joined", f"alert {text} (joined: {why})", actor=ACTOR, data={"why": why}, at=now)
        announce(session, incident, "incident.updated", now)
    alert = Alert(
        incident_id=incident.id,
        fingerprint=message.fingerprint,
        status=message.status,
        group_key=group_key,
        labels=labels,
        annotations=annotations,
        starts_at=starts_at,
        ends_at=epoch_or_none(message.endsAt),
        generator_url=message.generatorURL,
        received=1,
        first_received=now,
        last_received=now,
    )
    session.add(alert)
    session.flush()
    apply_silences(session, incident, now)
    if message.status == "resolved":
        # We were not there when it fired; what happened is kept all the same.
        resolve(session, incident, alert, now)
    return incident


def resolved(session: Session, subject: Subject) -> tuple[Subject, str]:
    """The subject under canonical names, and what of it is known: `GPU` or `node`; empty where all stays text."""
    directory = directory_for(session, subject.node, subject.gpu)
    node = directory.node(subject.node) if subject.node else None
    gpu = directory.gpu(subject.gpu, node.id if node else None) if subject.gpu else None
    known = "GPU" if gpu and gpu.id else "node" if node and node.id and not subject.gpu else ""
    canonical = replace(
        subject,
        node=(node.id or subject.node) if node else None,
        gpu=(gpu.id or subject.gpu) if gpu else None,
    )
    return canonical, known


def resolve(session: Session, incident: Incident, alert: Alert, now: float) -> None:
    """The alert's condition is over: that closes its incident unless a job failure, or another alert that fires, is attached."""
    session.flush()
    text = f"alert {name_of(alert.labels)} is resolved"
    failure = session.scalar(select(Failure.id).where(Failure.incident_id == incident.id).limit(1))
    firing = session.scalar(
        select(Alert.id).where(Alert.incident_id == incident.id, Alert.status == "firing", Alert.id != alert.id).limit(1)
    )
    add_timeline(session, incident.id, "resolved", text, actor=ACTOR, data={"alert": alert.fingerprint}, at=now)
    if failure is None and firing is None:
        move(session, incident, IncidentState.RESOLVED, text, actor=ACTOR, at=now)
    else:
        announce(session, incident, "incident.updated", now)


def open_failure_of(session: Session, job: str | None, now: float) -> tuple[Incident | None, str]:
    if job is None:
        return None, ""
    incident = session.scalar(
        select(Incident)
        .where(
            Incident.job == job,
            Incident.kind == "failure",
            Incident.open_key.is_not(None),
            Incident.last_seen >= now - JOIN_WINDOW_SECONDS,
        )
        .order_by(Incident.last_seen.desc())
        .limit(1)
    )
    return incident, f"job {job} has an open failure of the last {JOIN_WINDOW_SECONDS / 60:.0f} minutes"


def name_of(labels: dict[str, str]) -> str:
    return labels.get("alertname", "without a name")


def describe(labels: dict[str, str], annotations: dict[str, str]) -> str:
    said = annotations.get("summary") or annotations.get("description")
    return f"{name_of(labels)}: {said}" if said else name_of(labels)
