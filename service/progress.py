"""How far each generation of a job came: written down as attempts and heartbeats arrive, for the accounts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.store.accounts import GenerationRow
from service.store.jobs import Job, Node

__all__ = ["Sighting", "add_generation", "note_generation", "note_last_step", "note_sightings"]

# A rank in one of these is busy with something that takes as long as it takes, and lives.
LONG_SECTIONS = frozenset({"checkpoint", "evaluation"})


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a heartbeat says of one rank. `completed`: steps that it has finished; `age_seconds`: since it last got anywhere."""

    rank: int
    state: str
    step: int | None = None
    loss: float | None = None
    completed: int | None = None
    step_seconds: float | None = None
    age_seconds: float | None = None
    section: str | None = None


def note_generation(
    session: Session, job: Job, number: int, attempt: int, ranks: int, node: str | None, started_at: float
) -> None:
    """A generation was formed, of `ranks` ranks (0: as many as the job has). A second report of it changes nothing.

    `started_at` is on the clock of `node`'s agent where one is named, and is put on the service's.
    """
    if session.get(GenerationRow, (job.name, number)) is not None:
        return
    reporter = session.get(Node, node) if node is not None else None
    offset = (reporter.clock_offset_seconds or 0.0) if reporter is not None else 0.0
    add_generation(session, job, number, attempt, ranks or job.ranks, started_at - offset)


def add_generation(session: Session, job: Job, number: int, attempt: int, gpus: int, started_at: float) -> GenerationRow:
    """The row of a generation that is not stored yet, of `gpus` GPUs."""
    reached = select(func.max(GenerationRow.last_step)).where(GenerationRow.job == job.name, GenerationRow.number < number)
    row = GenerationRow(
        job=job.name, number=number, attempt=attempt, gpus=gpus, started_at=started_at, behind_step=session.scalar(reached)
    )
    session.add(row)
    return row


def note_last_step(session: Session, job: str, number: int, step: int | None) -> None:
    """A failure report knows the step that the generation died in; the last heartbeat may be a second older."""
    row = session.get(GenerationRow, (job, number))
    if row is not None and step is not None and row.last_step is not None:
        row.last_step = max(row.last_step, step)


def note_sightings(row: GenerationRow, seen: Sequence[Sighting], now: float) -> None:
    """What ranks of one node say of themselves. Training is synchronous: the slowest of them is where the job is."""
    stepping = [sighting for sighting in seen if sighting.state != "exited" and sighting.step is not None and sighting.step >= 0]
    if not stepping:
        return
    slowest = min(stepping, key=lambda sighting: sighting.step or 0)
    step, pace, age = slowest.step or 0, slowest.step_seconds or 0.0, slowest.age_seconds or 0.0
    if row.first_step is None:
        done = slowest.completed or 0
        row.first_step = step - done
        row.first_step_at = now - age - done * pace
    elif slowest.completed is not None:
        # Between two steps the newest one is already among those completed.
        row.first_step = max(row.first_step, step - slowest.completed)
    row.last_step = step if row.last_step is None else max(row.last_step, step)
    if row.behind_step is not None and row.caught_up_at is None and step > row.behind_step:
        row.caught_up_at = now - age - (step - row.behind_step - 1) * pace
    oldest = max(stepping, key=lambda sighting: sighting.age_seconds or 0.0)
    alive = now if oldest.section in LONG_SECTIONS else now - (oldest.age_seconds or 0.0)
    row.alive_at = alive if row.alive_at is None else max(row.alive_at, alive)
    row.step_seconds = slowest.step_seconds or row.step_seconds
