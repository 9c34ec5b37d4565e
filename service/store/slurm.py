"""Slurm's jobs as far as Pitstop cares for them, what its hooks said, and the calls to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import JSON, Boolean, Float, ForeignKey, Integer, String, Text, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from service.store.database import Base, BigId

__all__ = ["SchedulerCall", "SlurmJob", "SlurmWord", "slurm_job_of", "words_waiting"]


class SlurmJob(Base):
    """One job of Slurm that carries one of ours. `restarts`: Slurm's count for the attempt that runs, or ran last.

    `state`: as Slurm has it now; `ending`: how it ended that attempt, None while it goes on; `evidence`, `node_words` (by node):
    lines that tell the diagnosis; `reported`: whether they have. `requeued`: the next attempt is in the queue, or runs already.
    `ended_generation`: ours, of the last attempt that Slurm ended badly.
    """

    __tablename__ = "slurm_jobs"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    cluster: Mapped[str] = mapped_column(String(64), primary_key=True)
    job: Mapped[str] = mapped_column(String(255), index=True)
    restarts: Mapped[int] = mapped_column(Integer, default=0)
    nodes: Mapped[list[str]] = mapped_column(JSON, default=list)
    state: Mapped[str] = mapped_column(String(32), default="RUNNING")
    ending: Mapped[str | None] = mapped_column(String(32))
    evidence: Mapped[str] = mapped_column(Text, default="")
    node_words: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    why: Mapped[str] = mapped_column(Text, default="")
    reported: Mapped[bool] = mapped_column(Boolean, default=False)
    ended_generation: Mapped[int | None] = mapped_column(Integer)
    requeued: Mapped[bool] = mapped_column(Boolean, default=False)
    over: Mapped[bool] = mapped_column(Boolean, default=False, index=True)
    ended_at: Mapped[float | None] = mapped_column(Float)
    seen_at: Mapped[float] = mapped_column(Float)


class SlurmWord(Base):
    """One call of a hook, as it came; `done` once what follows from it is stored. `vouched`: a token stands behind it."""

    __tablename__ = "slurm_words"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(String(32))
    node: Mapped[str | None] = mapped_column(String(255))
    slurm_id: Mapped[str | None] = mapped_column(String(32), index=True)
    fields: Mapped[dict[str, Any]] = mapped_column(JSON)
    vouched: Mapped[bool] = mapped_column(Boolean, default=False)
    received_at: Mapped[float] = mapped_column(Float, index=True)
    done: Mapped[bool] = mapped_column(Boolean, default=False, index=True)


class SchedulerCall(Base):
    """Something wanted of a job from its scheduler. `goal`: recovery/drivers/slurm.JobGoal; `state`: pending, done, failed."""

    __tablename__ = "scheduler_calls"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    key: Mapped[str] = mapped_column(String(255), unique=True)
    recovery_id: Mapped[int] = mapped_column(ForeignKey("recoveries.id"), index=True)
    action_id: Mapped[int] = mapped_column(ForeignKey("actions.id"), index=True)
    incident_id: Mapped[int] = mapped_column(ForeignKey("incidents.id"), index=True)
    job: Mapped[str] = mapped_column(String(255))
    generation: Mapped[int] = mapped_column(Integer)
    goal: Mapped[dict[str, Any]] = mapped_column(JSON)
    did: Mapped[list[str]] = mapped_column(JSON, default=list)
    state: Mapped[str] = mapped_column(String(16), default="pending", index=True)
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    detail: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[float] = mapped_column(Float)
    claimed_until: Mapped[float] = mapped_column(Float, default=0.0)
    ended_at: Mapped[float | None] = mapped_column(Float)


def slurm_job_of(session: Session, job: str) -> SlurmJob | None:
    """The newest job of Slurm that carries `job`."""
    return session.scalar(select(SlurmJob).where(SlurmJob.job == job).order_by(SlurmJob.over, SlurmJob.seen_at.desc()).limit(1))


def words_waiting(session: Session, limit: int) -> Sequence[SlurmWord]:
    """What hooks said and nothing has followed from yet, in order."""
    return session.scalars(select(SlurmWord).where(SlurmWord.done.is_(False)).order_by(SlurmWord.id).limit(limit)).all()
