"""Plans of who runs where, and the step times that they are made from."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, Float, ForeignKey, Integer, String, Text, UniqueConstraint, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from service.store.database import Base, BigId

__all__ = ["UNDECIDED", "PlanRow", "PlanState", "StepTime", "acting_plans", "newest_plan"]


class StepTime(Base):
    """The step time of a job on so many nodes and ranks under one layout, as its ranks reported it."""

    __tablename__ = "step_times"
    __table_args__ = (UniqueConstraint("job", "nodes", "ranks", "layout"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    job: Mapped[str] = mapped_column(ForeignKey("jobs.name"), index=True)
    nodes: Mapped[int] = mapped_column(Integer)
    ranks: Mapped[int] = mapped_column(Integer)
    # Tensor x pipeline x data where the job named them, else empty.
    layout: Mapped[str] = mapped_column(String(64), default="")
    seconds: Mapped[float] = mapped_column(Float)
    samples: Mapped[int] = mapped_column(Integer, default=1)
    updated_at: Mapped[float] = mapped_column(Float)


class PlanState(StrEnum):
    """What became of a proposal. Suggested: nobody acts on it; waiting: for a person."""

    SUGGESTED = "suggested"
    WAITING = "waiting"
    ACTING = "acting"
    VERIFIED = "verified"
    FAILED = "failed"
    REJECTED = "rejected"
    STALE = "stale"


UNDECIDED = (PlanState.SUGGESTED.value, PlanState.WAITING.value)


class PlanRow(Base):
    """One proposal and what became of it.

    `parts`, one a job
    that is re-formed: {"job", "nodes", "after": jobs that first give nodes up, "recovery": its id once begun, "hit": bool}.
    """

    __tablename__ = "plans"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    stamp: Mapped[str] = mapped_column(String(32), index=True)
    state: Mapped[str] = mapped_column(String(16), index=True)
    cause: Mapped[str] = mapped_column(Text)
    why: Mapped[str] = mapped_column(Text)
    document: Mapped[dict[str, Any]] = mapped_column(JSON)
    parts: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    incident_id: Mapped[int | None] = mapped_column(ForeignKey("incidents.id"), index=True)
    decided_by: Mapped[str | None] = mapped_column(String(255))
    created_at: Mapped[float] = mapped_column(Float)
    decided_at: Mapped[float | None] = mapped_column(Float)
    ended_at: Mapped[float | None] = mapped_column(Float)


def acting_plans(session: Session) -> Sequence[PlanRow]:
    """Plans that are being carried out, oldest first."""
    return session.scalars(select(PlanRow).where(PlanRow.state == PlanState.ACTING.value).order_by(PlanRow.id)).all()


def newest_plan(session: Session) -> PlanRow | None:
    return session.scalar(select(PlanRow).order_by(PlanRow.id.desc()).limit(1))
