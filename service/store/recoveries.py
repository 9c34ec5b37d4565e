"""Recoveries, the actions that they took, the commands to agents, and stored notifications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import JSON, Boolean, Float, ForeignKey, Index, Integer, String, Text, UniqueConstraint, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from service.store.database import Base, BigId

__all__ = [
    "ActionRow",
    "CommandRow",
    "Notification",
    "RecoveryRow",
    "commands_after",
    "failed_verifications",
    "find_recovery",
    "relaunches",
    "unfinished",
]


class RecoveryRow(Base):
    """One recovery per failed generation of a job. `state` is the workflow's own; the other columns are drawn from it.

    `directive`: what launchers are told for ever, None while undecided. `relaunches`: how often it started the job's processes
    again. `claimed_by`: who looks for the cause, until when nobody else does.
    """

    __tablename__ = "recoveries"
    __table_args__ = (
        UniqueConstraint("job", "attempt", "generation"),
        Index("ix_recoveries_job_fingerprint", "job", "fingerprint"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    incident_id: Mapped[int] = mapped_column(ForeignKey("incidents.id"), index=True)
    job: Mapped[str] = mapped_column(String(255))
    attempt: Mapped[int] = mapped_column(Integer)
    generation: Mapped[int] = mapped_column(Integer)
    fingerprint: Mapped[str | None] = mapped_column(String(64))
    stage: Mapped[str] = mapped_column(String(16))
    state: Mapped[dict[str, Any]] = mapped_column(JSON)
    directive: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    relaunches: Mapped[int] = mapped_column(Integer, default=0)
    over: Mapped[bool] = mapped_column(Boolean, default=False, index=True)
    claimed_by: Mapped[str | None] = mapped_column(String(255))
    claimed_until: Mapped[float] = mapped_column(Float, default=0.0)
    created_at: Mapped[float] = mapped_column(Float)
    updated_at: Mapped[float] = mapped_column(Float, index=True)


class ActionRow(Base):
    """One action on a job or beyond it, in the audit trail: who decided, on which grounds, what became of it."""

    __tablename__ = "actions"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    key: Mapped[str] = mapped_column(String(255), unique=True)
    recovery_id: Mapped[int] = mapped_column(ForeignKey("recoveries.id"), index=True)
    incident_id: Mapped[int] = mapped_column(ForeignKey("incidents.id"), index=True)
    job: Mapped[str] = mapped_column(String(255), index=True)
    action: Mapped[str] = mapped_column(String(32))
    mode: Mapped[str] = mapped_column(String(16))
    decided_by: Mapped[str] = mapped_column(String(255))
    generation: Mapped[int] = mapped_column(Integer)
    decision: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[str] = mapped_column(String(16))
    detail: Mapped[str] = mapped_column(Text, default="")
    issued_at: Mapped[float] = mapped_column(Float)
    ended_at: Mapped[float | None] = mapped_column(Float)


class CommandRow(Base):
    """One command to one node's agent. Ids rise in commit order: agents page by them. A localisation's commands belong to no
    action; those without a job are for the node's own agent; `answer`: what a probe measured."""

    __tablename__ = "commands"
    __table_args__ = (Index("ix_commands_node_id", "node", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    key: Mapped[str] = mapped_column(String(320), unique=True)
    action_id: Mapped[int | None] = mapped_column(ForeignKey("actions.id"), index=True)
    recovery_id: Mapped[int | None] = mapped_column(ForeignKey("recoveries.id"), index=True)
    node: Mapped[str] = mapped_column(String(255))
    job: Mapped[str | None] = mapped_column(String(255))
    generation: Mapped[int] = mapped_column(Integer)
    kind: Mapped[str] = mapped_column(String(32))
    args: Mapped[dict[str, Any]] = mapped_column(JSON)
    deadline: Mapped[float] = mapped_column(Float)
    created_at: Mapped[float] = mapped_column(Float)
    status: Mapped[str | None] = mapped_column(String(16))
    detail: Mapped[str | None] = mapped_column(Text)
    answered_generation: Mapped[int | None] = mapped_column(Integer)
    answered_at: Mapped[float | None] = mapped_column(Float)
    localization_id: Mapped[int | None] = mapped_column(ForeignKey("localizations.id"), index=True)
    probe_id: Mapped[int | None] = mapped_column(ForeignKey("probes.id"))
    answer: Mapped[dict[str, Any] | None] = mapped_column(JSON)


class Notification(Base):
    """A message that is owed to somebody. The row is the stored notification; `channels` says what became of its sending.

    `due_at`: when it is sent or tried again, None once nothing is left to do. `state` and `fingerprint`: which change of which
    fault it tells, None where a recovery asked for it.
    """

    __tablename__ = "notifications"
    __table_args__ = (Index("ix_notifications_fingerprint", "fingerprint", "id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    key: Mapped[str] = mapped_column(String(255), unique=True)
    # None: it is about the cluster, not about one failure.
    incident_id: Mapped[int | None] = mapped_column(ForeignKey("incidents.id"), index=True)
    job: Mapped[str | None] = mapped_column(String(255), index=True)
    audience: Mapped[str] = mapped_column(String(16))
    recipient: Mapped[str | None] = mapped_column(String(255))
    text: Mapped[str] = mapped_column(Text)
    channels: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(Float)
    fingerprint: Mapped[str | None] = mapped_column(String(64))
    state: Mapped[str | None] = mapped_column(String(32))
    due_at: Mapped[float | None] = mapped_column(Float, index=True)


def find_recovery(session: Session, job: str, attempt: int, generation: int) -> RecoveryRow | None:
    """The recovery of one failed generation."""
    return session.scalar(
        select(RecoveryRow).where(RecoveryRow.job == job, RecoveryRow.attempt == attempt, RecoveryRow.generation == generation)
    )


def unfinished(session: Session, job: str) -> Sequence[RecoveryRow]:
    """The job's recoveries that are not over, oldest first."""
    return session.scalars(
        select(RecoveryRow).where(RecoveryRow.job == job, RecoveryRow.over.is_(False)).order_by(RecoveryRow.id)
    ).all()


def relaunches(session: Session, job: str, since: float, fingerprint: str | None = None) -> int:
    """How often the job was started again since then, for one root or for any."""
    query = select(func.coalesce(func.sum(RecoveryRow.relaunches), 0)).where(
        RecoveryRow.job == job, RecoveryRow.created_at >= since
    )
    if fingerprint is not None:
        query = query.where(RecoveryRow.fingerprint == fingerprint)
    return session.scalar(query) or 0


def failed_verifications(session: Session, job: str, fingerprint: str, before: int) -> int:
    """How many recoveries of this root in a row, the newest first, ended without being verified."""
    stages = session.scalars(
        select(RecoveryRow.stage)
        .where(RecoveryRow.job == job, RecoveryRow.fingerprint == fingerprint, RecoveryRow.id < before)
        .order_by(RecoveryRow.id.desc())
        .limit(10)
    ).all()
    return next((index for index, stage in enumerate(stages) if stage != "escalated"), len(stages))


def commands_after(session: Session, node: str, after: int, now: float, limit: int = 100) -> Sequence[CommandRow]:
    """Commands to `node` that are still to be carried out, in order."""
    return session.scalars(
        select(CommandRow)
        .where(CommandRow.node == node, CommandRow.id > after, CommandRow.status.is_(None), CommandRow.deadline > now)
        .order_by(CommandRow.id)
        .limit(limit)
    ).all()
