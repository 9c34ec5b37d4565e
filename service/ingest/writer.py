"""The one writer of kept lines: batches that wait together are committed together, and acknowledged only then."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from service.ingest.matching import Overloaded
from service.ingest.origins import Origins, write_counts
from service.ingest.preparation import Door, Prepared
from service.ingest.storing import Acknowledged, GroupStore, Submitted
from service.store import Clock, Store

__all__ = ["Acknowledged", "ChunkWriter", "WriteFailed"]

log = logging.getLogger("pitstop.service")

GROUP_BYTES = 16 * 1024 * 1024
GROUP_BATCHES = 256
# A commit costs about as much for one batch as for several: it waits this long for those that are being prepared.
GATHER_SECONDS = 0.05
IDLE_SECONDS = 1.0


class WriteFailed(RuntimeError):
    """The database did not take it: nothing of the batch is stored."""


@dataclass(slots=True)
class Pending:
    submitted: Submitted
    future: Future[Acknowledged] = field(default_factory=Future)

    @property
    def size(self) -> int:
        return sum([len(stream.data) for stream in self.submitted.prepared.streams])


class ChunkWriter:
    """A thread that owns the tables of kept lines. On PostgreSQL writers of other replicas take turns with it."""

    def __init__(self, store: Store, clock: Clock, max_waiting_bytes: int) -> None:
        self._store = store
        self._clock = clock
        self._queue: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()
        self.origins = Origins()
        self._groups = GroupStore(self.origins)
        self._max_waiting_bytes = max_waiting_bytes
        self._lock = threading.Lock()
        self._closing = False
        self.waiting_bytes = 0
        # Batches that are being prepared and will be submitted soon.
        self.coming = 0
        self._thread = threading.Thread(target=self._run, name="chunk-writer", daemon=True)
        self._thread.start()

    def submit(self, prepared: Prepared, door: Door, origin: str, batch_id: str | None, named: bool) -> Future[Acknowledged]:
        """Raises Overloaded; the future raises WriteFailed. `named`: the id is the sender's own, not made from the content."""
        pending = Pending(Submitted(prepared, door, origin, batch_id, named))
        with self._lock:
            if self._closing or (self.waiting_bytes and self.waiting_bytes + pending.size > self._max_waiting_bytes):
                raise Overloaded("the store is behind: send it again in a moment")
            self.waiting_bytes += pending.size
        self._queue.put(pending)
        return pending.future

    def check(self) -> str:
        """`ok`, or what is wrong, for /readyz."""
        return "ok" if self._thread.is_alive() else "the writer of kept lines has ended"

    def close(self) -> None:
        """Write what is waiting, then end."""
        with self._lock:
            self._closing = True
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _run(self) -> None:
        ending = False
        while not ending:
            try:
                first = self._queue.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                self._write_errors()
                continue
            if first is None:
                self._write_errors()
                return
            group, ending = self._gather(first)
            self._commit(group)

    def _gather(self, first: Pending) -> tuple[list[Pending], bool]:
        """`first` and what waits behind it or comes soon; and whether the end came."""
        group, size = [first], first.size
        until = time.monotonic() + GATHER_SECONDS
        while size < GROUP_BYTES and len(group) < GROUP_BATCHES:
            try:
                # What is being prepared is worth waiting for: its commit would cost as much again.
                left = until - time.monotonic()
                more = self._queue.get(timeout=left) if self.coming > 0 and left > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if more is None:
                return group, True
            group.append(more)
            size += more.size
        return group, False

    def _write_errors(self) -> None:
        """Errors of sources that send nothing else."""
        counted = self.origins.take_errors()
        if counted:
            try:
                with self._store.writing() as session:
                    write_counts(session, counted, {}, self._clock())
            except SQLAlchemyError as error:
                log.error("counts of refused bodies could not be stored: %s", str(error).splitlines()[0])

    def _commit(self, group: Sequence[Pending]) -> None:
        try:
            with self._store.writing() as session:
                answers = self._groups.write(session, [pending.submitted for pending in group], self._clock())
        except Exception as error:
            # Whatever it was, the writer lives on: its thread is the only one.
            self._groups.forget()
            if len(group) > 1:
                # One that cannot be stored must not take the others with it.
                for pending in group:
                    self._commit([pending])
                return
            log.error("a batch could not be stored: %s: %s", type(error).__name__, (str(error).splitlines() or [""])[0])
            self._finish(group[0], WriteFailed("the batch could not be stored: send it again"))
            return
        for pending, answer in zip(group, answers, strict=True):
            self._finish(pending, answer)

    def _finish(self, pending: Pending, result: Acknowledged | WriteFailed) -> None:
        with self._lock:
            self.waiting_bytes -= pending.size
        if pending.future.set_running_or_notify_cancel():
            if isinstance(result, WriteFailed):
                pending.future.set_exception(result)
            else:
                pending.future.set_result(result)
