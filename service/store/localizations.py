"""Fault localisations and their probes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import JSON, Float, ForeignKey, Integer, String, Text, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from service.store.database import Base, BigId

__all__ = ["DONE", "LocalizationRow", "ProbeRow", "localization_of_incident", "probes_of", "under_way"]

STOPPING, PROBING, DONE = "stopping", "probing", "done"


class LocalizationRow(Base):
    """One localisation: whom it looks at, how far it is, and its verdict. `able`: nodes whose agents offer probes; `endpoints`:
    where each node would run the store of its next world, [host, port]; `probe_seconds`: the limit of one world."""

    __tablename__ = "localizations"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    recovery_id: Mapped[int | None] = mapped_column(ForeignKey("recoveries.id"))
    incident_id: Mapped[int | None] = mapped_column(ForeignKey("incidents.id"), index=True)
    job: Mapped[str | None] = mapped_column(String(255))
    asked_by: Mapped[str] = mapped_column(String(255))
    pool: Mapped[dict[str, Any]] = mapped_column(JSON)
    able: Mapped[list[str]] = mapped_column(JSON)
    state: Mapped[str] = mapped_column(String(16), index=True)
    detail: Mapped[str] = mapped_column(Text, default="")
    started_at: Mapped[float] = mapped_column(Float)
    until: Mapped[float] = mapped_column(Float)
    turn_until: Mapped[float] = mapped_column(Float)
    probe_seconds: Mapped[float] = mapped_column(Float)
    backend: Mapped[str] = mapped_column(String(16))
    endpoints: Mapped[dict[str, Any]] = mapped_column(JSON)
    verdict: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    ended_at: Mapped[float | None] = mapped_column(Float)


class ProbeRow(Base):
    """One probe, with its result once it has one."""

    __tablename__ = "probes"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    localization_id: Mapped[int] = mapped_column(ForeignKey("localizations.id"), index=True)
    turn: Mapped[int] = mapped_column(Integer)
    round: Mapped[int] = mapped_column(Integer)
    members: Mapped[list[str]] = mapped_column(JSON)
    outcome: Mapped[str | None] = mapped_column(String(16))
    seconds: Mapped[float | None] = mapped_column(Float)
    error: Mapped[str] = mapped_column(Text, default="")


def under_way(session: Session) -> Sequence[int]:
    """Localisations that are not done, oldest first."""
    return session.scalars(select(LocalizationRow.id).where(LocalizationRow.state != DONE).order_by(LocalizationRow.id)).all()


def probes_of(session: Session, localization: int) -> Sequence[ProbeRow]:
    """Its probes in the order in which they were asked for."""
    return session.scalars(select(ProbeRow).where(ProbeRow.localization_id == localization).order_by(ProbeRow.id)).all()


def localization_of_incident(session: Session, incident: int) -> LocalizationRow | None:
    """The newest localisation that an incident led to."""
    return session.scalar(
        select(LocalizationRow).where(LocalizationRow.incident_id == incident).order_by(LocalizationRow.id.desc()).limit(1)
    )
