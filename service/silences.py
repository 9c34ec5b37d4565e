"""Silences: incidents that match are kept and counted, and call nobody until the silence ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import re2
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store import Clock, Store
from service.store.incidents import Alert, Incident, Silence

__all__ = [
    "active_silences",
    "apply_silences",
    "begin_silences",
    "matches",
    "reapply_silences",
    "silence_by",
    "usable_pattern",
]


def options() -> Any:
    quiet = re2.Options()
    quiet.log_errors = False
    return quiet


def usable_pattern(pattern: str) -> bool:
    """Whether RE2 takes the pattern."""
    try:
        re2.compile(pattern, options())
    except re2.error:
        return False
    return True


def matches(matchers: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> bool:
    """Whether every matcher `{name, value, isRegex, isEqual}` holds; an absent label is an empty one."""
    for matcher in matchers:
        value = labels.get(matcher["name"], "")
        if matcher.get("isRegex"):
            found = re2.fullmatch(matcher["value"], value, options()) is not None
        else:
            found = value == matcher["value"]
        if found != matcher.get("isEqual", True):
            return False
    return True


def labels_of(incident: Incident, alert: Mapping[str, str] | None) -> dict[str, str]:
    """What matchers see: the labels of the incident's newest `alert`, and over them the incident's own fields."""
    own = {
        "kind": incident.kind,
        "job": incident.job,
        "node": incident.node,
        "gpu": incident.gpu,
        "rank": incident.rank,
        "reason": incident.reason,
        "category": incident.category,
        "severity": incident.severity,
    }
    return {**(alert or {})} | {name: value for name, value in own.items() if value is not None}


def active_silences(session: Session, now: float) -> Sequence[Silence]:
    """Those that hold now, the one that lasts longest first."""
    return session.scalars(
        select(Silence).where(Silence.starts_at <= now, Silence.ends_at > now).order_by(Silence.ends_at.desc())
    ).all()


def silence_by(active: Sequence[Silence], incident: Incident, alert: Mapping[str, str] | None) -> None:
    """Let the first of the `active` silences that matches, if any, hold for `incident`, whose newest alert has these labels."""
    labels = labels_of(incident, alert) if active else {}
    silence = next((silence for silence in active if matches(silence.matchers, labels)), None)
    incident.silence_id = None if silence is None else silence.id
    incident.silenced_until = None if silence is None else silence.ends_at


def apply_silences(session: Session, incident: Incident, now: float) -> None:
    """Let the active silence that matches and lasts longest, if any, hold for `incident`."""
    active = active_silences(session, now)
    silence_by(active, incident, newest_labels(session, incident) if active else None)


def newest_labels(session: Session, incident: Incident) -> dict[str, str] | None:
    """The labels of the newest alert that is part of the incident."""
    return session.scalar(select(Alert.labels).where(Alert.incident_id == incident.id).order_by(Alert.id.desc()).limit(1))


def begin_silences(store: Store, clock: Clock) -> None:
    """A duty: silences that were made for later begin."""
    with store.writing() as session:
        if session.scalar(select(Silence.id).where(Silence.starts_at > Silence.created_at, Silence.ends_at > clock()).limit(1)):
            reapply_silences(session, clock())


def reapply_silences(session: Session, now: float) -> None:
    """A silence was made, begun or ended: look at every open incident again."""
    active = active_silences(session, now)
    for incident in session.scalars(select(Incident).where(Incident.closed_at.is_(None))):
        silence_by(active, incident, newest_labels(session, incident) if active else None)
