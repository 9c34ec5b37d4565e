"""The one writer of kept lines: batches that wait together are committed together, and acknowledged only then."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import cast

from sqlalchemy import Table, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from rules.identity import storable
from service.chunks import ChunkEncoder, decode_chunk
from service.ingest.matching import Overloaded
from service.ingest.origins import OriginCounts, Origins, write_counts
from service.ingest.preparation import Door, Prepared, PreparedStream
from service.ingest.recent import DIGEST_BYTES, RECENT_SECONDS, RecentDigests
from service.store import Clock, Store
from service.store.database import hold_lock, insert_or_add
from service.store.logs import Batch, Chunk, DroppedLines, Stream

__all__ = ["Acknowledged", "ChunkWriter", "WriteFailed"]

log = logging.getLogger("pitstop.service")

GROUP_BYTES = 16 * 1024 * 1024
GROUP_BATCHES = 256
CHUNK_RAW_BYTES = 1024 * 1024
KNOWN_STREAMS = 100_000
# Rows go past the mapper: there are many, and nothing is read back.
CHUNK_TABLE = cast(Table, Chunk.__table__)
MAX_NAME, MAX_PATH = 255, 4096
IDLE_SECONDS = 1.0


class WriteFailed(RuntimeError):
    """The database did not take it: nothing of the batch is stored."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What is durable now. `duplicate`: this batch was stored before; the counts are those of then."""

    accepted: int
    kept: int
    dropped: int
    duplicate: bool


@dataclass(slots=True)
class Pending:
    prepared: Prepared
    door: Door
    origin: str
    batch_id: str | None
    named: bool
    future: Future[Acknowledged] = field(default_factory=Future)

    @property
    def size(self) -> int:
        return sum(len(stream.data) for stream in self.prepared.streams)


class ChunkWriter:
    """A thread that owns the tables of kept lines. On PostgreSQL writers of other replicas take turns with it."""

    def __init__(self, store: Store, clock: Clock, max_waiting_bytes: int) -> None:
        self._store = store
        self._clock = clock
        self._queue: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()
        self._streams: dict[str, int] = {}
        self._recent = RecentDigests()
        self._encoder = ChunkEncoder()
        self.origins = Origins()
        self._max_waiting_bytes = max_waiting_bytes
        self._lock = threading.Lock()
        self._closing = False
        self.waiting_bytes = 0
        self._thread = threading.Thread(target=self._run, name="chunk-writer", daemon=True)
        self._thread.start()

    def submit(self, prepared: Prepared, door: Door, origin: str, batch_id: str | None, named: bool) -> Future[Acknowledged]:
        """Raises Overloaded; the future raises WriteFailed. `named`: the id is the sender's own, not made from the content."""
        pending = Pending(prepared, door, origin, batch_id, named)
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
            group, size = [first], first.size
            while size < GROUP_BYTES and len(group) < GROUP_BATCHES:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    ending = True
                    break
                group.append(more)
                size += more.size
            self._commit(group)

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
                answers = self._write(session, group)
        except Exception as error:
            # Whatever it was, the writer lives on: its thread is the only one.
            self._streams.clear()
            self._recent = RecentDigests()
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

    def _write(self, session: Session, group: Sequence[Pending]) -> list[Acknowledged]:
        now = self._clock()
        hold_lock(session, "chunks")
        self._recent.catch_up(session, now)
        answers: list[Acknowledged] = []
        fresh: list[Pending] = []
        digests: dict[bytes, None] = {}
        for pending in group:
            stored = self._stored_before(session, pending, now)
            if stored is not None:
                answers.append(Acknowledged(stored.accepted, stored.kept, stored.dropped, True))
                continue
            pending.prepared = self._without_repeats(pending.prepared, digests)
            prepared = pending.prepared
            if pending.batch_id is not None:
                counts = {"accepted": prepared.accepted, "kept": prepared.kept, "dropped": prepared.dropped}
                session.add(Batch(id=pending.batch_id, stored_at=now, **counts))
                session.flush()
            fresh.append(pending)
            answers.append(Acknowledged(prepared.accepted, prepared.kept, prepared.dropped, False))
        if digests:
            self._recent.store(session, b"".join(digests), now)
        ids = self._stream_ids(session, fresh, now)
        self._write_chunks(session, fresh, ids, now)
        self._count(session, fresh, ids, now)
        return answers

    def _stored_before(self, session: Session, pending: Pending, now: float) -> Batch | None:
        if pending.batch_id is None:
            return None
        stored = session.get(Batch, pending.batch_id)
        if stored is not None and not pending.named and stored.stored_at < now - RECENT_SECONDS:
            # Equal content after that long is no retry.
            session.delete(stored)
            session.flush()
            return None
        return stored

    def _without_repeats(self, prepared: Prepared, of_group: dict[bytes, None]) -> Prepared:
        """`prepared` without lines that were stored in the last minutes, or earlier in this group; notes those that stay."""
        streams: list[PreparedStream] = []
        for stream in prepared.streams:
            single = [stream.digests[start : start + DIGEST_BYTES] for start in range(0, len(stream.digests), DIGEST_BYTES)]
            repeated = set(self._recent.seen(stream.digests))
            repeated |= {position for position, digest in enumerate(single) if digest in of_group}
            of_group |= dict.fromkeys(digest for position, digest in enumerate(single) if position not in repeated)
            streams.append(self._without(stream, repeated) if repeated else stream)
        kept = sum(stream.lines for stream in streams)
        return prepared._replace(streams=tuple(streams), kept=kept)

    def _without(self, stream: PreparedStream, repeated: set[int]) -> PreparedStream:
        lines = [line for position, line in enumerate(decode_chunk(stream.data)) if position not in repeated]
        raw_bytes = sum(len(line.text) + 1 for line in lines)
        return stream._replace(lines=len(lines), raw_bytes=raw_bytes, data=self._encoder.encode(lines) if lines else b"")

    def _stream_ids(self, session: Session, group: Sequence[Pending], now: float) -> dict[str, int]:
        wanted = {stream.key: (stream, pending.origin) for pending in group for stream in pending.prepared.streams}
        ids = {key: self._streams[key] for key in wanted if key in self._streams}
        missing = [key for key in wanted if key not in ids]
        if missing:
            ids |= {row.key: row.id for row in session.execute(select(Stream.key, Stream.id).where(Stream.key.in_(missing)))}
            for key in missing:
                if key not in ids:
                    row = new_stream(*wanted[key], now)
                    session.add(row)
                    session.flush()
                    ids[key] = row.id
            if len(self._streams) > KNOWN_STREAMS:
                self._streams.clear()
            self._streams |= {key: ids[key] for key in missing}
        return ids

    def _write_chunks(self, session: Session, group: Sequence[Pending], ids: dict[str, int], now: float) -> None:
        chunks: dict[int, list[list[PreparedStream]]] = {}
        for pending in group:
            for stream in pending.prepared.streams:
                if not stream.lines:
                    continue
                grown = chunks.setdefault(ids[stream.key], [[]])
                if grown[-1] and sum(part.raw_bytes for part in grown[-1]) + stream.raw_bytes > CHUNK_RAW_BYTES:
                    grown.append([])
                grown[-1].append(stream)
        if not chunks:
            return
        found = session.execute(
            select(Chunk.stream_id, func.max(Chunk.sequence)).where(Chunk.stream_id.in_(chunks)).group_by(Chunk.stream_id)
        )
        last = {row[0]: row[1] for row in found}
        rows = [
            {
                "stream_id": stream_id,
                "sequence": last.get(stream_id, 0) + position,
                "lines": sum(part.lines for part in parts),
                "raw_bytes": sum(part.raw_bytes for part in parts),
                "first_time": min(part.first_time for part in parts),
                "last_time": max(part.last_time for part in parts),
                "stored_at": now,
                "data": b"".join(part.data for part in parts),
            }
            for stream_id, grown in chunks.items()
            for position, parts in enumerate(grown, 1)
        ]
        session.connection().execute(CHUNK_TABLE.insert(), rows)

    def _count(self, session: Session, group: Sequence[Pending], ids: dict[str, int], now: float) -> None:
        dropped: dict[tuple[int, str], int] = {}
        counted = self.origins.take_errors()
        for pending in group:
            prepared = pending.prepared
            for stream in prepared.streams:
                for rule, lines in stream.dropped.items():
                    place = (ids[stream.key], rule)
                    dropped[place] = dropped.get(place, 0) + lines
            counts = counted.setdefault(pending.origin, OriginCounts(pending.door.value))
            counts.lines += prepared.accepted
            counts.bytes += prepared.bytes
            counts.dropped += prepared.dropped
            counts.errors += prepared.rejected
            counts.last_error = prepared.why_rejected or counts.last_error
            counts.last_line_time = prepared.last_line_time or counts.last_line_time
        if dropped:
            rows = [{"stream_id": place[0], "rule": place[1], "lines": lines} for place, lines in sorted(dropped.items())]
            insert_or_add(session, DroppedLines, rows, keys=("stream_id", "rule"), added=("lines",))
        if counted:
            rates = {name: self.origins.rate(name, counts.lines, now) for name, counts in counted.items()}
            write_counts(session, counted, rates, now)


def new_stream(stream: PreparedStream, origin: str, now: float) -> Stream:
    key = stream.stream
    return Stream(
        key=stream.key,
        origin=origin,
        trust=stream.trust.value,
        job=None if key.job is None else storable(key.job, MAX_NAME),
        attempt=key.attempt,
        node=None if key.node is None else storable(key.node, MAX_NAME),
        rank=key.rank,
        path=storable(key.path, MAX_PATH),
        labels={storable(name, MAX_NAME): storable(value, MAX_PATH) for name, value in key.labels},
        created_at=now,
    )
