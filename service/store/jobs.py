"""Jobs, their attempts, what their ranks last said, and the nodes that carry them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, Boolean, Float, ForeignKey, Integer, String, UniqueConstraint, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from service.store.database import Base, BigId

__all__ = [
    "Attempt",
    "GpuRow",
    "Job",
    "JobState",
    "Node",
    "NodeAlias",
    "RankState",
    "count_jobs",
    "current_attempt",
    "current_attempts",
    "find_attempt",
    "rank_states",
]


class JobState(StrEnum):
    """How far a job has come. The last three: Slurm ended it as somebody asked."""

    REGISTERED = "registered"
    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REVOKED = "revoked"
    REQUEUED = "requeued"


class Job(Base):
    """One training run. `generation` is the last one that its leader agent reported; `waits`: by node, what its agent waits for,
    {"for", "since"}."""

    __tablename__ = "jobs"

    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    owner: Mapped[str | None] = mapped_column(String(255))
    contact: Mapped[str | None] = mapped_column(String(255))
    project: Mapped[str | None] = mapped_column(String(255), index=True)
    command: Mapped[list[str]] = mapped_column(JSON)
    ranks: Mapped[int] = mapped_column(Integer)
    nodes: Mapped[list[str]] = mapped_column(JSON)
    min_ranks: Mapped[int | None] = mapped_column(Integer)
    layout: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    checkpoint_policy: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    max_restarts: Mapped[int | None] = mapped_column(Integer)
    weight: Mapped[float] = mapped_column(Float, default=1.0)
    modes: Mapped[dict[str, str]] = mapped_column(JSON, default=dict)
    waits: Mapped[dict[str, dict[str, Any]]] = mapped_column(JSON, default=dict, server_default="{}")
    # Registered by an unauthenticated caller on this machine: its own processes may be acted on, nothing beyond.
    local: Mapped[bool] = mapped_column(Boolean, default=False)
    state: Mapped[str] = mapped_column(String(32), default=JobState.REGISTERED.value, index=True)
    generation: Mapped[int] = mapped_column(Integer, default=0)
    exit_status: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[float] = mapped_column(Float)
    updated_at: Mapped[float] = mapped_column(Float)
    heartbeat_at: Mapped[float | None] = mapped_column(Float)
    ended_at: Mapped[float | None] = mapped_column(Float)


class Attempt(Base):
    """One start of a job; `ranks` says which node carried which rank: [{"rank", "local_rank", "node", "pid"}]."""

    __tablename__ = "attempts"
    __table_args__ = (UniqueConstraint("job", "number"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    job: Mapped[str] = mapped_column(ForeignKey("jobs.name"))
    number: Mapped[int] = mapped_column(Integer)
    generation: Mapped[int] = mapped_column(Integer)
    cause: Mapped[str] = mapped_column(String(32))
    directive_id: Mapped[str | None] = mapped_column(String(64))
    ranks: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    store: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    started_at: Mapped[float] = mapped_column(Float)
    ended_at: Mapped[float | None] = mapped_column(Float)


class RankState(Base):
    """The last heartbeat of one rank. `heard_at` is the service's clock, `age_seconds` the agent's monotonic one."""

    __tablename__ = "rank_states"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.name"), primary_key=True)
    rank: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(Integer)
    generation: Mapped[int] = mapped_column(Integer)
    node: Mapped[str | None] = mapped_column(String(255))
    step: Mapped[int | None] = mapped_column(BigId)
    step_seconds: Mapped[float | None] = mapped_column(Float)
    loss: Mapped[float | None] = mapped_column(Float)
    state: Mapped[str] = mapped_column(String(16))
    age_seconds: Mapped[float | None] = mapped_column(Float)
    heard_at: Mapped[float] = mapped_column(Float)


class Node(Base):
    """One machine under its canonical id, with the lease of its agent. `probes`: the backend that its agent last offered probes
    of fault localisation on, and when."""

    __tablename__ = "nodes"

    id: Mapped[str] = mapped_column(String(255), primary_key=True)
    state: Mapped[str] = mapped_column(String(32), default="ready")
    boot_id: Mapped[str | None] = mapped_column(String(64))
    agent_id: Mapped[str | None] = mapped_column(String(64))
    versions: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    clock_offset_seconds: Mapped[float | None] = mapped_column(Float)
    lease_until: Mapped[float | None] = mapped_column(Float)
    probes: Mapped[str | None] = mapped_column(String(16))
    probes_at: Mapped[float | None] = mapped_column(Float)
    seen_at: Mapped[float] = mapped_column(Float)


class NodeAlias(Base):
    """Another name of a node. A name that two nodes claim is ambiguous and names neither."""

    __tablename__ = "node_aliases"

    alias: Mapped[str] = mapped_column(String(255), primary_key=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    learnt_from: Mapped[str] = mapped_column(String(32))


class GpuRow(Base):
    """A GPU as the agent of its node last reported it. `id` is the serial, else the UUID: its history follows it."""

    __tablename__ = "gpus"

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.id"), index=True)
    uuid: Mapped[str | None] = mapped_column(String(128))
    serial: Mapped[str | None] = mapped_column(String(128))
    pci: Mapped[str | None] = mapped_column(String(64))
    index: Mapped[int | None] = mapped_column(Integer)
    seen_at: Mapped[float] = mapped_column(Float)


def find_attempt(session: Session, job: str, number: int) -> Attempt | None:
    """The attempt `number` of `job`."""
    return session.scalar(select(Attempt).where(Attempt.job == job, Attempt.number == number))


def current_attempt(session: Session, job: str) -> Attempt | None:
    """The newest attempt of `job`."""
    return session.scalar(
        select(Attempt).where(Attempt.job == job).order_by(Attempt.generation.desc(), Attempt.number.desc()).limit(1)
    )


def current_attempts(session: Session, states: Collection[str]) -> dict[str, Attempt]:
    """The newest attempt of each job that is in one of these states, by job."""
    newest_first = Attempt.generation.desc(), Attempt.number.desc()
    placed = (
        select(Attempt.id, func.row_number().over(partition_by=Attempt.job, order_by=newest_first).label("place"))
        .join(Job, Job.name == Attempt.job)
        .where(Job.state.in_(states))
        .subquery()
    )
    found = session.scalars(select(Attempt).join(placed, placed.c.id == Attempt.id).where(placed.c.place == 1))
    return {attempt.job: attempt for attempt in found}


def rank_states(session: Session, job: str) -> Sequence[RankState]:
    """What each rank of `job` last said, by rank."""
    return session.scalars(select(RankState).where(RankState.job == job).order_by(RankState.rank)).all()


def count_jobs(session: Session) -> dict[str, int]:
    """How many jobs are in each state."""
    rows = session.execute(select(Job.state, func.count()).group_by(Job.state))
    return {row[0]: row[1] for row in rows}
