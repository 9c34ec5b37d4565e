"""What accounts are made of and what they come to: generations of jobs, losses, time by job, day and phase, and heat."""

from __future__ import annotations

from sqlalchemy import Float, ForeignKey, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from service.store.database import Base, BigId

__all__ = ["GenerationRow", "JobDay", "LossRow", "NodeHeat"]


class GenerationRow(Base):
    """One forming of a job and the steps seen of it. `alive_at`: when it last got anywhere, on the service's clock."""

    __tablename__ = "generations"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.name"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(Integer)
    gpus: Mapped[int] = mapped_column(Integer)
    started_at: Mapped[float] = mapped_column(Float)
    first_step: Mapped[int | None] = mapped_column(BigId)
    first_step_at: Mapped[float | None] = mapped_column(Float)
    last_step: Mapped[int | None] = mapped_column(BigId)
    alive_at: Mapped[float | None] = mapped_column(Float)
    step_seconds: Mapped[float | None] = mapped_column(Float)
    # The step that those before it had reached, and when it was past that.
    behind_step: Mapped[int | None] = mapped_column(BigId)
    caught_up_at: Mapped[float | None] = mapped_column(Float)
    # Where the job ended well under it: what follows under the same name is a life of its own.
    done_at: Mapped[float | None] = mapped_column(Float)


class LossRow(Base):
    """What the end of one generation cost (recovery/accounts.Loss). Reason, rule and node are the incident's own."""

    __tablename__ = "losses"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.name"), primary_key=True)
    generation: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    incident_id: Mapped[int | None] = mapped_column(ForeignKey("incidents.id"), index=True)
    gpus: Mapped[int] = mapped_column(Integer)
    stopped_at: Mapped[float] = mapped_column(Float, index=True)
    ran_seconds: Mapped[float] = mapped_column(Float)
    detection_seconds: Mapped[float] = mapped_column(Float)
    diagnosis_seconds: Mapped[float] = mapped_column(Float)
    decision_seconds: Mapped[float] = mapped_column(Float)
    transition_seconds: Mapped[float] = mapped_column(Float)
    recomputing_seconds: Mapped[float] = mapped_column(Float)
    restart_seconds: Mapped[float | None] = mapped_column(Float)
    recomputed_steps: Mapped[int | None] = mapped_column(BigId)
    missing_gpu_seconds: Mapped[float] = mapped_column(Float)
    lost_gpu_seconds: Mapped[float] = mapped_column(Float)


class JobDay(Base):
    """Time of one job on one day (days since the epoch, UTC) in one phase. `held`: GPUs times seconds; `missing`: likewise."""

    __tablename__ = "job_days"
    __table_args__ = (Index("ix_job_days_day", "day", "phase"),)

    job: Mapped[str] = mapped_column(ForeignKey("jobs.name"), primary_key=True)
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    phase: Mapped[str] = mapped_column(String(16), primary_key=True)
    seconds: Mapped[float] = mapped_column(Float)
    held_gpu_seconds: Mapped[float] = mapped_column(Float)
    missing_gpu_seconds: Mapped[float] = mapped_column(Float)


class NodeHeat(Base):
    """How hot the hottest GPU of a node was in one hour (hours since the epoch), in degrees Celsius."""

    __tablename__ = "node_heat"
    __table_args__ = (Index("ix_node_heat_hour", "hour"),)

    node: Mapped[str] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    hour: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    highest_celsius: Mapped[float] = mapped_column(Float)
