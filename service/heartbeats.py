"""Heartbeats: the last one of each node is held in memory, and all of them are written together, twice a second, or as often as
leaves the writer to others for most of the time.

What changes a job or a rank's state is written before it is answered: the end, a new generation, a rank that exited, fell silent
or came back. Steps and times alone are answered first. Others see those through the rows, which are behind by WRITE_SECONDS.
Killed with -9, the service loses the steps of that time; the next heartbeat tells them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from anyio import to_thread
from sqlalchemy import and_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, load_only

from service.periodic import repeat
from service.progress import Sighting, add_generation, note_sightings
from service.store import Clock, Store
from service.store.accounts import GenerationRow
from service.store.database import insert_or_add, select_in
from service.store.jobs import Job, JobState, RankState

__all__ = ["Heartbeat", "Heartbeats", "Standing", "note_wait", "store_heartbeats"]

log = logging.getLogger("pitstop.heartbeats")

WRITE_SECONDS = 0.5
# After a write that took long there is none for so many times as long.
LEFT_TO_OTHERS = 3
# What is known of a job is read again twice a second; where that did not happen, heartbeats do not rely on it.
KNOWN_SECONDS = 2.5
REMEMBERED_JOBS = 10_000
RANK_STATE = ("attempt", "generation", "node", "step", "step_seconds", "loss", "state", "age_seconds", "heard_at")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the ranks of one node said of themselves, heard at `at` by the service's clock. `waits_for`: whom or what its agent
    waits for."""

    job: str
    attempt: int
    generation: int
    node: str | None
    seen: tuple[Sighting, ...]
    at: float
    waits_for: str | None = None

    @property
    def runs(self) -> bool:
        """Whether a rank of its generation is there: an agent may still be looking for the nodes that are to carry it."""
        return any(rank.state != "exited" for rank in self.seen)

    def changes(self, before: Heartbeat | None) -> bool:
        """Whether it says more than steps and times that are newer than those of the one `before`."""
        if before is None or self.waits_for != before.waits_for:
            return True
        if (self.attempt, self.generation) != (before.attempt, before.generation):
            return True
        return [(rank.rank, rank.state) for rank in self.seen] != [(rank.rank, rank.state) for rank in before.seen]


@dataclass(frozen=True, slots=True)
class Standing:
    """Of a job, as its row said `at`."""

    project: str | None
    generation: int
    state: str
    at: float
    waits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def note_wait(job: Job, heartbeat: Heartbeat) -> None:
    """What the agent of a node waits for, or that it waits no longer."""
    node = heartbeat.node or ""
    if job.waits.get(node, {}).get("for") == heartbeat.waits_for:
        return
    others = {name: wait for name, wait in job.waits.items() if name != node}
    job.waits = others if heartbeat.waits_for is None else {**others, node: {"for": heartbeat.waits_for, "since": heartbeat.at}}


def store_heartbeats(session: Session, jobs: Mapping[str, Job], heartbeats: Iterable[Heartbeat]) -> None:
    """Store what ranks of the present generation say; an older one changes nothing. `jobs`: rows of this session, by name."""
    rows = []
    present = select(GenerationRow).join(Job, and_(Job.name == GenerationRow.job, Job.generation == GenerationRow.number))
    generations = {row.job: row for row in select_in(session, present, Job.name, jobs)}
    for heartbeat in heartbeats:
        job = jobs.get(heartbeat.job)
        if job is None or job.generation != heartbeat.generation:
            continue
        job.heartbeat_at = heartbeat.at
        note_wait(job, heartbeat)
        reached = generations.get(job.name)
        if reached is None:
            reached = add_generation(session, job, heartbeat.generation, heartbeat.attempt, job.ranks, heartbeat.at)
            generations[job.name] = reached
        note_sightings(reached, heartbeat.seen, heartbeat.at)
        place = {"job": heartbeat.job, "attempt": heartbeat.attempt, "generation": heartbeat.generation, "node": heartbeat.node}
        for rank in heartbeat.seen:
            said = {"step": rank.step, "step_seconds": rank.step_seconds, "loss": rank.loss, "age_seconds": rank.age_seconds}
            rows.append(place | said | {"rank": rank.rank, "state": rank.state, "heard_at": heartbeat.at})
    if rows:
        session.flush()
        insert_or_add(session, RankState, rows, keys=("job", "rank"), replaced=RANK_STATE, newest="heard_at")


class Heartbeats:
    """The heartbeats that are not written yet, and where their jobs stand. Safe to share between threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, Standing] = {}
        self._last: dict[str, dict[str | None, Heartbeat]] = {}
        self._held: dict[str, dict[str | None, Heartbeat]] = {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._write_at = -math.inf
        self._stopping = asyncio.Event()

    def standing(self, job: str, now: float) -> Standing | None:
        """Where `job` stands, if that was read lately."""
        known = self._known.get(job)
        return known if known is not None and 0 <= now - known.at < KNOWN_SECONDS else None

    def hold(self, heartbeat: Heartbeat) -> bool:
        """Hold `heartbeat`, of the generation that its running job stands at, where only steps and times are new; where not,
        False: `add` it."""
        with self._lock:
            if heartbeat.changes(self._last.get(heartbeat.job, {}).get(heartbeat.node)):
                return False
            self._hold(heartbeat)
        return True

    def add(self, heartbeats: Iterable[Heartbeat]) -> None:
        """Write `heartbeats`, and whatever else is held with them. Raises SQLAlchemyError: then they are still held."""
        with self._lock:
            for heartbeat in heartbeats:
                self._hold(heartbeat)
        self.write()

    def _hold(self, heartbeat: Heartbeat) -> None:
        if len(self._last) >= REMEMBERED_JOBS:
            self._last.clear()
            self._known.clear()
        for kept in (self._last, self._held):
            kept.setdefault(heartbeat.job, {})[heartbeat.node] = heartbeat

    def write(self) -> None:
        """Write what is held, in one transaction. Raises SQLAlchemyError: then all of it is still held."""
        with self._writing:
            self._write()

    def _write(self) -> None:
        with self._lock:
            held = {job: dict(nodes) for job, nodes in self._held.items()}
        if not held:
            return
        with self._store.writing() as session:
            jobs = load_jobs(session, sorted(held))
            store_heartbeats(session, jobs, (beat for job in sorted(held) for beat in held[job].values()))
        self._learn(held, jobs)
        with self._lock:
            for name, nodes in held.items():
                present = self._held[name]
                for node, heartbeat in nodes.items():
                    if present.get(node) is heartbeat:
                        del present[node]
                if not present:
                    del self._held[name]

    def _learn(self, names: Iterable[str], jobs: Mapping[str, Job]) -> None:
        """Know where the jobs of these `names` stand by their rows."""
        now = self._clock()
        with self._lock:
            for name in names:
                job = jobs.get(name)
                if job is None or job.state != JobState.RUNNING:
                    self._known.pop(name, None)
                    self._last.pop(name, None)
                else:
                    self._known[name] = Standing(job.project, job.generation, job.state, now)

    def work(self) -> None:
        """Read again where jobs stand, and write what is held if it is time to. Raises SQLAlchemyError."""
        with self._writing:
            names = sorted(self._known)
            if names:
                with self._store.reading() as session:
                    jobs = load_jobs(session, names)
                self._learn(names, jobs)
        began = time.monotonic()
        if began >= self._write_at:
            self.write()
            self._write_at = time.monotonic() + LEFT_TO_OTHERS * (time.monotonic() - began)

    @contextmanager
    def settled(self, job: str) -> Iterator[None]:
        """Meanwhile the job's row may be changed: what was held of it is written, and nothing of what was known of it stays."""
        with self._writing:
            if job in self._held:
                self._write()
            try:
                yield
            finally:
                with self._lock:
                    self._known.pop(job, None)
                    self._last.pop(job, None)

    def look_up(self, job: str) -> Standing | None:
        """Where `job` stands by its row, None where there is none. Raises SQLAlchemyError."""
        with self._store.reading() as session:
            row = load_jobs(session, [job]).get(job)
        return None if row is None else Standing(row.project, row.generation, row.state, self._clock(), row.waits)

    async def run(self) -> None:
        """Work every WRITE_SECONDS until `close`, and then write the rest."""
        await repeat(self.work, WRITE_SECONDS, self._stopping, "heartbeats cannot be written")
        try:
            await to_thread.run_sync(self.write)
        except SQLAlchemyError as error:
            log.warning("the last heartbeats are not written: %s", str(error).splitlines()[0])

    def close(self) -> None:
        self._stopping.set()


def load_jobs(session: Session, names: Iterable[str]) -> dict[str, Job]:
    """Rows of jobs, by name, without their long columns."""
    columns = load_only(Job.name, Job.project, Job.generation, Job.state, Job.ranks, Job.heartbeat_at, Job.waits)
    return {job.name: job for job in select_in(session, select(Job).options(columns), Job.name, names)}
