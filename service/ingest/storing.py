"""What one commit of kept lines writes: chunks, batch ids, digests of records, and counts, for several batches at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from sqlalchemy import Table, bindparam, delete, func, insert, select
from sqlalchemy.orm import Session

from rules.identity import storable
from service.chunks import ChunkEncoder, decode_chunk
from service.ingest.origins import OriginCounts, Origins, write_counts
from service.ingest.preparation import Door, Prepared, PreparedStream
from service.ingest.recent import RECENT_SECONDS, RecentDigests
from service.store.database import hold_lock, insert_or_add
from service.store.logs import Batch, Chunk, DroppedLines, Stream

__all__ = ["Acknowledged", "GroupStore", "Submitted"]

CHUNK_RAW_BYTES = 1024 * 1024
KNOWN_STREAMS = 100_000
MAX_NAME, MAX_PATH = 255, 4096

# Rows go past the mapper, and statements are built once: there are many, and building takes longer than running.
INSERT_CHUNKS = cast(Table, Chunk.__table__).insert()
INSERT_BATCHES = insert(cast(Table, Batch.__table__))
OLD_BATCHES = select(Batch.id, Batch.accepted, Batch.kept, Batch.dropped, Batch.stored_at).where(
    Batch.id.in_(bindparam("ids", expanding=True))
)
FORGET_BATCHES = delete(Batch).where(Batch.id.in_(bindparam("ids", expanding=True)))
KNOWN_KEYS = select(Stream.key, Stream.id).where(Stream.key.in_(bindparam("keys", expanding=True)))
# One look into the index for each stream; grouping would read all its chunks.
LAST_SEQUENCES = select(
    Stream.id, select(func.max(Chunk.sequence)).where(Chunk.stream_id == Stream.id).correlate(Stream).scalar_subquery()
).where(Stream.id.in_(bindparam("ids", expanding=True)))


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What is durable now. `duplicate`: this batch was stored before; the counts are those of then."""

    accepted: int
    kept: int
    dropped: int
    duplicate: bool


class Submitted(NamedTuple):
    """A prepared body. `batch_id`: under which it is known when it comes again; `named`: the sender's own, not made from the
    content."""

    prepared: Prepared
    door: Door
    origin: str
    batch_id: str | None
    named: bool


class GroupStore:
    """Writes groups of batches, each in the caller's transaction; after one that failed, `forget`."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._encoder = ChunkEncoder()
        self.forget()

    def forget(self) -> None:
        """Drop what was remembered of the database."""
        self._streams: dict[str, int] = {}
        self._recent = RecentDigests()

    def write(self, session: Session, group: Sequence[Submitted], now: float) -> list[Acknowledged]:
        """The answers to `group`, true once the transaction is committed."""
        hold_lock(session, "chunks")
        self._recent.catch_up(session, now)
        known = self._stored_before(session, group, now)
        answers: list[Acknowledged] = []
        fresh: list[Submitted] = []
        for batch in group:
            stored = None if batch.batch_id is None else known.get(batch.batch_id)
            if stored is None:
                prepared = self._without_repeats(batch.prepared)
                stored = Acknowledged(prepared.accepted, prepared.kept, prepared.dropped, False)
                fresh.append(batch._replace(prepared=prepared))
                if batch.batch_id is not None:
                    # The same batch may stand in the group twice.
                    known[batch.batch_id] = Acknowledged(prepared.accepted, prepared.kept, prepared.dropped, True)
            answers.append(stored)
        self._recent.store(session, now)
        rows = [
            {"id": batch.batch_id, "accepted": done.accepted, "kept": done.kept, "dropped": done.dropped, "stored_at": now}
            for batch, done in zip(group, answers, strict=True)
            if batch.batch_id is not None and not done.duplicate
        ]
        if rows:
            session.connection().execute(INSERT_BATCHES, rows)
        ids = self._stream_ids(session, fresh, now)
        self._write_chunks(session, fresh, ids, now)
        self._count(session, fresh, ids, now)
        return answers

    def _stored_before(self, session: Session, group: Sequence[Submitted], now: float) -> dict[str, Acknowledged]:
        named = {batch.batch_id: batch.named for batch in group if batch.batch_id is not None}
        if not named:
            return {}
        connection = session.connection()
        rows = connection.execute(OLD_BATCHES, {"ids": list(named)}).all()
        # Equal content after that long is no retry.
        outlived = [row.id for row in rows if not named[row.id] and row.stored_at < now - RECENT_SECONDS]
        if outlived:
            connection.execute(FORGET_BATCHES, {"ids": outlived})
        return {row.id: Acknowledged(row.accepted, row.kept, row.dropped, True) for row in rows if row.id not in outlived}

    def _without_repeats(self, prepared: Prepared) -> Prepared:
        """`prepared` without lines that were stored in the last minutes, or earlier in this group; notes those that stay."""
        if self._recent.note_new(b"".join([stream.digests for stream in prepared.streams])):
            return prepared
        streams = []
        for stream in prepared.streams:
            repeated = self._recent.note(stream.digests)
            streams.append(self._without(stream, repeated) if repeated else stream)
        return prepared._replace(streams=tuple(streams), kept=sum(stream.lines for stream in streams))

    def _without(self, stream: PreparedStream, repeated: set[int]) -> PreparedStream:
        lines = [line for position, line in enumerate(decode_chunk(stream.data)) if position not in repeated]
        raw_bytes = sum(len(line.text) + 1 for line in lines)
        return stream._replace(lines=len(lines), raw_bytes=raw_bytes, data=self._encoder.encode(lines) if lines else b"")

    def _stream_ids(self, session: Session, group: Sequence[Submitted], now: float) -> dict[str, int]:
        known = self._streams
        missing = {
            stream.key: (stream, batch.origin) for batch in group for stream in batch.prepared.streams if stream.key not in known
        }
        if not missing:
            return known
        found = {row.key: row.id for row in session.connection().execute(KNOWN_KEYS, {"keys": list(missing)})}
        created = [new_stream(stream, origin, now) for key, (stream, origin) in missing.items() if key not in found]
        if created:
            session.add_all(created)
            session.flush()
            found |= {row.key: row.id for row in created}
        if len(known) + len(found) > KNOWN_STREAMS:
            # All of this group stay known, whether this has room for them or not.
            known = self._streams = {
                stream.key: known[stream.key] for b in group for stream in b.prepared.streams if stream.key in known
            }
        known |= found
        return known

    def _write_chunks(self, session: Session, group: Sequence[Submitted], ids: dict[str, int], now: float) -> None:
        chunks: dict[int, list[list[PreparedStream]]] = {}
        for batch in group:
            for stream in batch.prepared.streams:
                if not stream.lines:
                    continue
                grown = chunks.setdefault(ids[stream.key], [[]])
                if grown[-1] and sum(part.raw_bytes for part in grown[-1]) + stream.raw_bytes > CHUNK_RAW_BYTES:
                    grown.append([])
                grown[-1].append(stream)
        if not chunks:
            return
        connection = session.connection()
        last = {row[0]: row[1] or 0 for row in connection.execute(LAST_SEQUENCES, {"ids": list(chunks)})}
        rows = [
            chunk_row(stream_id, last[stream_id] + position, parts, now)
            for stream_id, grown in chunks.items()
            for position, parts in enumerate(grown, 1)
        ]
        connection.execute(INSERT_CHUNKS, rows)

    def _count(self, session: Session, group: Sequence[Submitted], ids: dict[str, int], now: float) -> None:
        dropped: dict[tuple[int, str], int] = {}
        counted = self._origins.take_errors()
        for batch in group:
            prepared = batch.prepared
            for stream in prepared.streams:
                for rule, lines in stream.dropped.items():
                    place = (ids[stream.key], rule)
                    dropped[place] = dropped.get(place, 0) + lines
            counts = counted.setdefault(batch.origin, OriginCounts(batch.door.value))
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
            rates = {name: self._origins.rate(name, counts.lines, now) for name, counts in counted.items()}
            write_counts(session, counted, rates, now)


def chunk_row(stream_id: int, sequence: int, parts: Sequence[PreparedStream], now: float) -> dict[str, object]:
    return {
        "stream_id": stream_id,
        "sequence": sequence,
        "lines": sum([part.lines for part in parts]),
        "raw_bytes": sum([part.raw_bytes for part in parts]),
        "first_time": min([part.first_time for part in parts]),
        "last_time": max([part.last_time for part in parts]),
        "stored_at": now,
        "data": b"".join([part.data for part in parts]),
    }


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
