"""Who carries a decision about a job out: its own agents, or the scheduler that placed it; and what is wanted of the latter."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum

from sqlalchemy.orm import Session

from recovery.decision import Decision, DirectiveKind
from recovery.drivers.slurm import MENDABLE, JobGoal, SlurmSite, Verb, foreseen
from recovery.states import Act
from service.store.recoveries import ActionRow, RecoveryRow
from service.store.slurm import SchedulerCall, SlurmJob, slurm_job_of

__all__ = ["Hand", "ask_scheduler", "goal_of", "hand_of", "requeues", "would_ask"]


class Hand(StrEnum):
    """`agents`: commands to the job's agents; `requeue`: the scheduler is asked to; `queued`: it does so by itself."""

    AGENTS = "agents"
    REQUEUE = "requeue"
    QUEUED = "queued"


def requeues(session: Session, job: str, site: SlurmSite | None) -> bool:
    """Whether the job's scheduler finds other nodes for it: then it needs no spares and no shrinking."""
    row = slurm_job_of(session, job)
    return site is not None and row is not None and not row.over


def is_started_again(row: SlurmJob, generation: int) -> bool:
    """Whether Slurm ended the attempt of this generation, and has the job in the queue or at work again."""
    ended = row.ended_generation is not None and generation <= row.ended_generation
    return row.requeued or (ended and row.ending is None)


def hand_of(session: Session, job: str, generation: int, decision: Decision | None, site: SlurmSite | None) -> Hand:
    """Ranks are restarted by agents where the nodes stay; other nodes are the scheduler's to give. `generation`: that failed."""
    row = slurm_job_of(session, job)
    if row is None or decision is None or decision.directive in (DirectiveKind.STOP, DirectiveKind.NONE):
        return Hand.AGENTS
    again = is_started_again(row, generation)
    if again and not (decision.exclude and site is not None):
        return Hand.QUEUED
    if site is None:
        return Hand.AGENTS
    if decision.exclude or row.ending in MENDABLE:
        return Hand.REQUEUE
    return Hand.AGENTS


def goal_of(row: SlurmJob, recovery: RecoveryRow, decision: Decision) -> JobGoal:
    """Raises DriverError where a name cannot be given to Slurm."""
    begun = row.ending is None and is_started_again(row, recovery.generation)
    restarts = row.restarts - 1 if begun else row.restarts
    return JobGoal(Verb.REQUEUE, row.id, restarts, str(recovery.id), decision.why[0], decision.exclude)


def would_ask(session: Session, row: RecoveryRow, decision: Decision) -> tuple[str, ...]:
    """The exact commands that asking the scheduler would take."""
    job = slurm_job_of(session, row.job)
    return () if job is None else foreseen(goal_of(job, row, decision))


def ask_scheduler(session: Session, row: RecoveryRow, action: ActionRow, act: Act, now: float) -> None:
    """Store what is wanted of the scheduler; service/slurm_calls makes the calls."""
    job = slurm_job_of(session, row.job)
    assert job is not None
    session.add(
        SchedulerCall(
            key=f"{action.id}/requeue",
            recovery_id=row.id,
            action_id=action.id,
            incident_id=row.incident_id,
            job=row.job,
            generation=act.generation,
            goal=asdict(goal_of(job, row, act.decision)),
            did=[],
            state="pending",
            attempts=0,
            detail="",
            created_at=now,
            claimed_until=0.0,
        )
    )
    session.flush()
