"""Incidents, the failures and alerts that they gather, and their timelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import JSON, Boolean, Float, ForeignKey, Index, Integer, Select, String, Text, UniqueConstraint, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from service.store.database import Base, BigId

__all__ = [
    "Alert",
    "Failure",
    "Implication",
    "Incident",
    "JoinDecision",
    "Silence",
    "TimelineEntry",
    "count_timeline",
    "find_failure",
    "page_of_incidents",
    "timeline",
]

SHOWN_ENTRIES = 500


class Incident(Base):
    """One failure of one job (or of one node without a job). `open_key` is the fingerprint while open, else null."""

    __tablename__ = "incidents"
    __table_args__ = (
        Index("ix_incidents_state_last_seen", "state", "last_seen"),
        # What the report counts: rows carry whole diagnoses, and a hundred thousand of them are slow to read.
        Index("ix_incidents_report", "merged_into", "first_seen", "reason", "severity", "occurrences"),
        # What lists are ordered, filtered and counted by.
        Index(
            "ix_incidents_listed",
            "merged_into",
            "last_seen",
            "open_key",
            "state",
            "severity",
            "job",
            "node",
            "reason",
            "silenced_until",
        ),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(32))
    fingerprint: Mapped[str] = mapped_column(String(64), index=True)
    open_key: Mapped[str | None] = mapped_column(String(64), unique=True)
    severity: Mapped[str] = mapped_column(String(8))
    reason: Mapped[str] = mapped_column(String(64))
    category: Mapped[str] = mapped_column(String(32))
    component: Mapped[str] = mapped_column(String(64))
    remedy: Mapped[str] = mapped_column(String(32))
    summary: Mapped[str] = mapped_column(Text)
    source: Mapped[str] = mapped_column(String(16))
    confidence: Mapped[float] = mapped_column(Float)
    rule: Mapped[str | None] = mapped_column(String(64))
    job: Mapped[str | None] = mapped_column(String(255), index=True)
    attempt: Mapped[int | None] = mapped_column(Integer)
    node: Mapped[str | None] = mapped_column(String(255), index=True)
    gpu: Mapped[str | None] = mapped_column(String(255))
    rank: Mapped[str | None] = mapped_column(String(255))
    link: Mapped[str | None] = mapped_column(String(255))
    occurrences: Mapped[int] = mapped_column(Integer, default=1)
    first_seen: Mapped[float] = mapped_column(Float, index=True)
    last_seen: Mapped[float] = mapped_column(Float)
    closed_at: Mapped[float | None] = mapped_column(Float)
    diagnosis: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    silenced_until: Mapped[float | None] = mapped_column(Float)
    # No foreign key: SQLite cannot add one to a table that others point to.
    silence_id: Mapped[int | None] = mapped_column(BigId)
    merged_into: Mapped[int | None] = mapped_column(ForeignKey("incidents.id"))


class Failure(Base):
    """One failure of one job as it was reported: by its launcher or by the agents of its nodes."""

    __tablename__ = "failures"
    __table_args__ = (
        UniqueConstraint("job", "idempotency_key"),
        Index("ix_failures_job_generation", "job", "attempt", "generation"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    incident_id: Mapped[int] = mapped_column(ForeignKey("incidents.id"), index=True)
    job: Mapped[str] = mapped_column(String(255))
    attempt: Mapped[int] = mapped_column(Integer)
    generation: Mapped[int] = mapped_column(Integer)
    idempotency_key: Mapped[str] = mapped_column(String(255))
    report: Mapped[dict[str, Any]] = mapped_column(JSON)
    reported_at: Mapped[float] = mapped_column(Float)
    # True where an agent's own token vouches for the exit statuses.
    vouched: Mapped[bool] = mapped_column(Boolean, default=False)


class Alert(Base):
    """One alert of Alertmanager, by its own fingerprint, as part of an incident."""

    __tablename__ = "alerts"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    incident_id: Mapped[int] = mapped_column(ForeignKey("incidents.id"), index=True)
    fingerprint: Mapped[str] = mapped_column(String(64), index=True)
    status: Mapped[str] = mapped_column(String(16))
    group_key: Mapped[str] = mapped_column(Text)
    labels: Mapped[dict[str, str]] = mapped_column(JSON)
    annotations: Mapped[dict[str, str]] = mapped_column(JSON)
    starts_at: Mapped[float] = mapped_column(Float)
    ends_at: Mapped[float | None] = mapped_column(Float)
    generator_url: Mapped[str] = mapped_column(Text)
    received: Mapped[int] = mapped_column(Integer, default=1)
    first_received: Mapped[float] = mapped_column(Float)
    last_received: Mapped[float] = mapped_column(Float)


class TimelineEntry(Base):
    """What happened to an incident, when, and who or what did it. `seconds` is how long the step took."""

    __tablename__ = "timeline"
    __table_args__ = (Index("ix_timeline_incident", "incident_id", "id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    incident_id: Mapped[int] = mapped_column(ForeignKey("incidents.id"))
    time: Mapped[float] = mapped_column(Float)
    kind: Mapped[str] = mapped_column(String(32))
    actor: Mapped[str] = mapped_column(String(255))
    text: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = mapped_column(JSON)
    seconds: Mapped[float | None] = mapped_column(Float)


class JoinDecision(Base):
    """What a person said of two things: `together` or `apart`. Remembered for all later incidents of the same keys."""

    __tablename__ = "join_decisions"
    __table_args__ = (UniqueConstraint("one", "other"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    one: Mapped[str] = mapped_column(String(128))
    other: Mapped[str] = mapped_column(String(128), index=True)
    verdict: Mapped[str] = mapped_column(String(8))
    by: Mapped[str] = mapped_column(String(255))
    at: Mapped[float] = mapped_column(Float)
    comment: Mapped[str] = mapped_column(Text)


class Silence(Base):
    """Incidents that match are counted and kept, and call nobody. In Alertmanager's form; `ends_at` is never open."""

    __tablename__ = "silences"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    matchers: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    starts_at: Mapped[float] = mapped_column(Float)
    ends_at: Mapped[float] = mapped_column(Float, index=True)
    created_by: Mapped[str] = mapped_column(String(255))
    comment: Mapped[str] = mapped_column(Text)
    created_at: Mapped[float] = mapped_column(Float)


class Implication(Base):
    """That a diagnosed failure pointed at a node, GPU or link: what suspicion across jobs is made of."""

    __tablename__ = "implications"
    __table_args__ = (UniqueConstraint("incident_id", "kind", "name"), Index("ix_implications_place", "kind", "name", "at"))

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    incident_id: Mapped[int] = mapped_column(ForeignKey("incidents.id"))
    kind: Mapped[str] = mapped_column(String(8))
    name: Mapped[str] = mapped_column(String(255))
    job: Mapped[str | None] = mapped_column(String(255))
    reason: Mapped[str] = mapped_column(String(64))
    weight: Mapped[float] = mapped_column(Float)
    at: Mapped[float] = mapped_column(Float)


def page_of_incidents(session: Session, chosen: Select[Incident], offset: int, limit: int) -> tuple[int, Sequence[Incident]]:
    """How many are `chosen`, and `limit` of them from `offset` on, the most recently seen first.

    Whole rows are read for the page only: what is skipped and sorted comes from the index.
    """
    order = Incident.last_seen.desc(), Incident.id.desc()
    total = session.scalar(select(func.count()).select_from(chosen.with_only_columns(Incident.id).subquery())) or 0
    page = chosen.with_only_columns(Incident.id).order_by(*order).offset(offset).limit(limit)
    return total, session.scalars(select(Incident).where(Incident.id.in_(page)).order_by(*order)).all()


def timeline(session: Session, incident_id: int) -> Sequence[TimelineEntry]:
    """The newest SHOWN_ENTRIES of one incident, oldest first: a storm of alerts writes thousands."""
    entries = select(TimelineEntry).where(TimelineEntry.incident_id == incident_id)
    return session.scalars(entries.order_by(TimelineEntry.id.desc()).limit(SHOWN_ENTRIES)).all()[::-1]


def count_timeline(session: Session, incident_id: int) -> int:
    """How many entries the timeline of one incident has."""
    return session.scalar(select(func.count(TimelineEntry.id)).where(TimelineEntry.incident_id == incident_id)) or 0


def find_failure(session: Session, job: str, idempotency_key: str) -> Failure | None:
    """The failure of `job` that was first reported under this key."""
    return session.scalar(select(Failure).where(Failure.job == job, Failure.idempotency_key == idempotency_key))
