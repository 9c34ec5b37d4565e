"""Watches what Slurm does with our jobs: folds what its hooks said, looks itself, reports the attempts that it ended badly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from detectors.slurm_states import (
    NODE_COLUMNS,
    QUEUE_COLUMNS,
    NodeWord,
    QueueWord,
    down_among,
    ending_of_requeue,
    ending_of_state,
    parse_nodes,
    parse_queue,
)
from recovery.drivers.slurm import Run, SlurmSite
from service.driver_calls import ask_slurm
from service.incidents import FailureReport
from service.recoveries import Recoveries
from service.slurm_words import end_attempt, fold_word, mark_node
from service.store import Store
from service.store.jobs import Job, current_attempt
from service.store.recoveries import find_recovery
from service.store.slurm import SlurmJob, words_waiting

__all__ = ["SlurmWatch"]

LOOK_SECONDS = 10.0
# After a hook spoke, and while an attempt's end is not understood.
SOON_SECONDS = 1.0
# A hook that tells how an attempt ended is given this long; then what still shows of it has to do.
WORD_SECONDS = 3.0
WORDS_AT_ONCE = 500
JOBS_AT_ONCE = 200


@dataclass(slots=True)
class SlurmWatch:
    """A chore. `site`: how to ask Slurm; None where only its hooks speak."""

    store: Store
    clock: Callable[[], float]
    recoveries: Recoveries
    site: SlurmSite | None
    run: Run = ask_slurm
    looked_at: float = 0.0
    due_at: float = 0.0
    problem: str | None = None
    _changed_at: dict[tuple[str, int], float] = field(default_factory=dict)
    _preempted: set[tuple[str, int]] = field(default_factory=set)

    def report(self) -> dict[str, Any]:
        """For /readyz: no data is not healthy."""
        return {"asked": self.site is not None, "looked_at": self.looked_at or None, "problem": self.problem}

    def work(self) -> bool:
        changed = self._fold()
        if self.site is not None and self.clock() >= self.due_at:
            changed |= self._look(self.site)
        return self._tell() or changed

    def _fold(self) -> bool:
        with self.store.reading() as session:
            if not words_waiting(session, 1):
                return False
        with self.store.writing() as session:
            for word in words_waiting(session, WORDS_AT_ONCE):
                fold_word(session, word)
        self.due_at = min(self.due_at, self.clock() + SOON_SECONDS)
        return True

    def _look(self, site: SlurmSite) -> bool:
        now = self.clock()
        self.due_at = now + LOOK_SECONDS
        with self.store.reading() as session:
            rows = session.scalars(select(SlurmJob).where(SlurmJob.over.is_(False)).order_by(SlurmJob.seen_at)).all()
        jobs = [row.id for row in rows][:JOBS_AT_ONCE]
        queue: dict[str, QueueWord] = {}
        if jobs:
            command = (*site.prefix, "squeue", "-h", "-t", "all", "-j", ",".join(jobs), "-O", QUEUE_COLUMNS)
            asked, said = self.run(command, site.timeout_seconds)
            if not asked and "Invalid job id" not in said:
                self.problem = said[:300] or "no answer"
                return False
            queue = parse_queue(said) if asked else {}
        asked, said = self.run((*site.prefix, "sinfo", "-h", "-N", "-O", NODE_COLUMNS), site.timeout_seconds)
        if not asked:
            self.problem = said[:300] or "no answer"
            return False
        self.problem, self.looked_at = None, now
        nodes = parse_nodes(said)
        with self.store.writing() as session:
            for word in nodes.values():
                mark_node(session, word, now)
            for job in jobs:
                row = session.scalars(select(SlurmJob).where(SlurmJob.id == job, SlurmJob.over.is_(False))).first()
                if row is not None:
                    self._compare(session, row, queue.get(job), nodes, now)
        return bool(jobs)

    def _compare(
        self, session: Session, row: SlurmJob, seen: QueueWord | None, nodes: Mapping[str, NodeWord], now: float
    ) -> None:
        """What Slurm says now, against what was known."""
        if seen is None:
            # It has forgotten the job: what was not heard of its end until now never will be.
            row.over = row.ending is not None or now - row.seen_at > WORD_SECONDS * 10
            return
        at = row.id, row.restarts
        if seen.preempted:
            self._preempted.add(at)
        again = seen.restarts > row.restarts
        row.state = seen.state
        if again and not row.requeued:
            row.requeued = True
        ended = again or (seen.is_over and seen.restarts == row.restarts)
        if ended and row.ending is None:
            since = self._changed_at.setdefault(at, now)
            if now - since < WORD_SECONDS:
                self.due_at = now + SOON_SECONDS
                return
            ending = (
                ending_of_requeue(row.id, row.nodes, nodes, at in self._preempted)
                if again
                else ending_of_state(row.id, seen.state, row.nodes)
            )
            end_attempt(session, row, ending, now)
        if row.ending == "NODE_FAIL" and not row.reported:
            row.node_words = {node.name: node.line for node in down_among(row.nodes, nodes)}
        if again and seen.is_over:
            self._ended_in_queue(session, row, seen, now)
        row.over = seen.is_over and row.reported
        if row.ending is not None:
            self._changed_at.pop(at, None)
            self._preempted.discard(at)

    def _ended_in_queue(self, session: Session, row: SlurmJob, seen: QueueWord, now: float) -> None:
        """It was to run again, and somebody ended it before we heard of another attempt."""
        job = session.get(Job, row.job)
        if job is not None and not row.over:
            job.state, job.ended_at, job.updated_at = seen.state.lower(), now, now

    def _tell(self) -> bool:
        """Report the attempts that Slurm ended badly, each once."""
        with self.store.reading() as session:
            waiting = session.scalars(select(SlurmJob).where(SlurmJob.reported.is_(False), SlurmJob.ending.is_not(None))).all()
        told = False
        for known in waiting:
            # What Slurm says of the nodes belongs to the same report.
            if self.site is not None and self.problem is None and self.looked_at < (known.ended_at or 0.0):
                self.due_at = 0.0
                continue
            with self.store.writing() as session:
                row = session.get_one(SlurmJob, (known.id, known.cluster), populate_existing=True)
                if not row.reported and row.ending is not None:
                    self._report(session, row)
                    told = True
        return told

    def _report(self, session: Session, row: SlurmJob) -> None:
        row.reported = True
        job = session.get(Job, row.job)
        if job is None:
            return
        attempt = current_attempt(session, row.job)
        number, generation = (attempt.number, attempt.generation) if attempt is not None else (job.generation + 1, job.generation)
        row.ended_generation = generation
        if row.ending == "FAILED" and find_recovery(session, row.job, number, generation) is not None:
            return
        key = f"slurm:{row.cluster}:{row.id}:{row.restarts}"
        scheduler = {"kind": "slurm", "why": f"{row.why} (job {row.id})", "lines": [row.evidence], "nodes": row.node_words}
        document = {"attempt": number, "generation": generation, "idempotency_key": key, "failed": [], "scheduler": scheduler}
        report = FailureReport(row.job, number, generation, key, vouched=not job.local, document=document)
        self.recoveries.report(session, report)
        if job.generation == generation:
            # After the recovery began: it learns from this that no process is left.
            job.ended_at = self.clock()
