"""Keeping accounts: a duty that draws up what each job's time was spent on, and what each of its failures cost.

Pages, exports and the weekly summary read what it wrote (service/account_tables.py) and compute nothing job by job.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from recovery.accounts import Generation, JobAccount, JobRecord, Outcome, Report, account, days_of
from recovery.states import Stage
from service.store import Clock, Store
from service.store.accounts import GenerationRow, JobDay, LossRow
from service.store.database import hold_lock
from service.store.incidents import Failure
from service.store.jobs import Job, Node
from service.store.recoveries import RecoveryRow

__all__ = ["Accounts", "accounts_of"]

# One round, so that the lease of duties is renewed in time; the jobs that are left come first in the next.
ROUND_SECONDS = 2.0


@dataclass(slots=True)
class Accounts:
    """The duty. Jobs of which nothing was heard since their last account are left as they stand."""

    store: Store
    clock: Clock
    elapsed: Callable[[], float] = time.monotonic
    _drawn_up: dict[str, float] = field(default_factory=dict)

    def work(self) -> None:
        """Draw up the accounts of jobs that something was heard of, those that have waited longest first."""
        now, begun = self.clock(), self.elapsed()
        with self.store.reading() as session:
            heard = last_heard(session)
        due = [job for job, moment in heard.items() if moment > self._drawn_up.get(job, -1.0)]
        for job in sorted(due, key=lambda name: (self._drawn_up.get(name, -1.0), name)):
            if self.elapsed() - begun > ROUND_SECONDS:
                break
            with self.store.writing() as session:
                hold_lock(session, f"account:{job}")
                lives = accounts_of(session, job, self.clock())
                if lives:
                    keep(session, job, lives)
            self._drawn_up[job] = min(heard[job], now)

    def report(self) -> dict[str, int]:
        """For /readyz: how many jobs have an account."""
        return {"jobs": len(self._drawn_up)}


def last_heard(session: Session) -> dict[str, float]:
    """When something was last heard of each job that has an attempt or a failure."""
    heard: dict[str, float] = {}
    for name, *moments in session.execute(select(Job.name, Job.updated_at, Job.heartbeat_at, Job.ended_at)):
        heard[name] = max(moment for moment in moments if moment is not None)
    unfinished = func.sum(case((RecoveryRow.over, 0), else_=1))
    recoveries = select(RecoveryRow.job, func.max(RecoveryRow.updated_at), unfinished).group_by(RecoveryRow.job)
    for name, moment, still_open in session.execute(recoveries):
        if name in heard:
            # What is still open costs more with every second, also where nothing is heard.
            heard[name] = float("inf") if still_open else max(heard[name], moment)
    return heard


def accounts_of(session: Session, name: str, now: float) -> list[JobAccount]:
    """The accounts of a job, one for each life: what runs under its name after it ended well is another one."""
    job = session.get_one(Job, name)
    rows = session.scalars(select(GenerationRow).where(GenerationRow.job == name).order_by(GenerationRow.number)).all()
    if not rows:
        return []
    reports, last_steps = reports_of(session, name, rows)
    is_open = session.scalar(
        select(func.count()).select_from(RecoveryRow).where(RecoveryRow.job == name, RecoveryRow.over.is_(False))
    )
    known = max(moment for moment in (job.heartbeat_at, job.updated_at, rows[-1].started_at) if moment is not None)
    lives: list[list[GenerationRow]] = [[]]
    for row in rows:
        lives[-1].append(row)
        if row.done_at is not None and row is not rows[-1]:
            lives.append([])
    accounts = []
    for life in lives:
        newest = life[-1]
        if newest.done_at is not None:
            until, outcome = newest.done_at, Outcome.DONE
        elif job.ended_at is not None:
            until, outcome = job.ended_at, Outcome.DONE if job.exit_status == 0 else Outcome.FAILED
        else:
            until, outcome = (now if is_open else known), Outcome.RUNNING
        generations = tuple(generation_of(row, last_steps.get(row.number)) for row in life)
        accounts.append(account(JobRecord(name, generations, reports, max(until, life[0].started_at), outcome)))
    return accounts


def generation_of(row: GenerationRow, reported: int | None) -> Generation:
    last = max((step for step in (row.last_step, reported) if step is not None), default=None)
    return Generation(
        number=row.number,
        gpus=row.gpus,
        started_at=row.started_at,
        first_step=row.first_step,
        first_step_at=row.first_step_at,
        last_step=None if row.first_step is None else last,
        alive_at=row.alive_at,
        step_seconds=row.step_seconds,
        caught_up_at=row.caught_up_at,
    )


def reports_of(session: Session, job: str, rows: Sequence[GenerationRow]) -> tuple[dict[int, Report], dict[int, int]]:
    """How each generation's failure was reported and handled, and the last step that was reported of it."""
    offsets = {node: offset or 0.0 for node, offset in session.execute(select(Node.id, Node.clock_offset_seconds))}
    told: dict[int, list[tuple[float, float | None]]] = defaultdict(list)
    last_steps: dict[int, int] = {}
    failures = select(Failure.generation, Failure.reported_at, Failure.report).where(Failure.job == job).order_by(Failure.id)
    for number, reported_at, document in session.execute(failures):
        told[number].append((reported_at, exit_of(document.get("failed") or (), offsets)))
        step = document.get("last_step")
        if isinstance(step, int):
            last_steps[number] = max(step, last_steps.get(number, step))
    recoveries = select(RecoveryRow.generation, RecoveryRow.state).where(RecoveryRow.job == job).order_by(RecoveryRow.id)
    handled = {number: handling_of(state) for number, state in session.execute(recoveries)}
    alive = {row.number: row.alive_at for row in rows}
    return {
        number: report_of(entries, alive.get(number), handled.get(number, {})) for number, entries in told.items()
    }, last_steps


def exit_of(failed: Sequence[Mapping[str, Any]], offsets: Mapping[str, float]) -> float | None:
    """When the first process raised or ended, on the service's clock."""
    moments = [
        rank[name] - offsets.get(str(rank.get("node")), 0.0)
        for rank in failed
        for name in ("raised_at", "time")
        if isinstance(rank.get(name), (int, float))
    ]
    return min(moments, default=None)


def handling_of(state: Mapping[str, Any]) -> dict[str, float]:
    """The first moment of each stage that a recovery reached, from its trail."""
    reached: dict[str, float] = {}
    for entry in state["trail"]:
        reached.setdefault(entry["stage"], entry["at"])
    return reached


def report_of(told: Sequence[tuple[float, float | None]], alive_at: float | None, reached: Mapping[str, float]) -> Report:
    """The reports of one generation as one: those after it last got anywhere; what was said before cost nothing."""
    after = [entry for entry in told if alive_at is None or entry[0] >= alive_at] or [told[-1]]
    exits = [moment for _, moment in after if moment is not None]
    ended = (reached.get(stage.value) for stage in (Stage.PLANNED, Stage.ACTED, Stage.STOPPED, Stage.ESCALATED))
    return Report(
        reported_at=after[0][0],
        exited_at=min(exits, default=None),
        diagnosed_at=reached.get(Stage.DIAGNOSED.value),
        decided_at=min((moment for moment in ended if moment is not None), default=None),
    )


def keep(session: Session, job: str, lives: Sequence[JobAccount]) -> None:
    """Bring the stored account up to this one; rows that have not changed are not written."""
    failures = select(Failure.generation, Failure.incident_id).where(Failure.job == job).order_by(Failure.id.desc())
    incidents: dict[int, int] = {row[0]: row[1] for row in session.execute(failures)}
    losses = {row.generation: row for row in session.scalars(select(LossRow).where(LossRow.job == job))}
    for loss in (loss for life in lives for loss in life.losses):
        row = losses.pop(loss.generation, None)
        if row is None:
            row = LossRow(job=job, generation=loss.generation)
            session.add(row)
        row.incident_id = incidents.get(loss.generation)
        row.gpus, row.stopped_at, row.ran_seconds = loss.gpus, loss.stopped_at, loss.ran_seconds
        row.restart_seconds, row.recomputed_steps = loss.restart_seconds, loss.recomputed_steps
        row.missing_gpu_seconds, row.lost_gpu_seconds = loss.missing_gpu_seconds, loss.lost_gpu_seconds
        for lost, seconds in loss.seconds.items():
            setattr(row, f"{lost.value}_seconds", seconds)
    days = {(row.day, row.phase): row for row in session.scalars(select(JobDay).where(JobDay.job == job))}
    for (day, phase), (spent, held, missing) in spent_by_day(lives).items():
        stored = days.pop((day, phase), None)
        if stored is None:
            stored = JobDay(job=job, day=day, phase=phase)
            session.add(stored)
        stored.seconds, stored.held_gpu_seconds, stored.missing_gpu_seconds = spent, held, missing
    # A stop that was none after all, a phase that turned out to be another one.
    for left in (*losses.values(), *days.values()):
        session.delete(left)


def spent_by_day(lives: Sequence[JobAccount]) -> dict[tuple[int, str], tuple[float, float, float]]:
    """(day, phase) -> seconds, GPU-seconds held, GPU-seconds missing."""
    spent: dict[tuple[int, str], tuple[float, float, float]] = {}
    for day, span in days_of([span for life in lives for span in life.spans]):
        seconds, held, missing = spent.get((day, span.phase.value), (0.0, 0.0, 0.0))
        spent[day, span.phase.value] = (
            seconds + span.seconds,
            held + span.seconds * span.gpus,
            missing + span.seconds * span.missing,
        )
    return spent
