"""Reading kept lines back, page by page, exactly as stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from service.chunks import decode_chunk
from service.problems import Problem
from service.store.database import timestamp
from service.store.jobs import NodeAlias
from service.store.logs import Chunk, Stream

__all__ = ["LineQuery", "Page", "node_streams", "read_page", "streams_of"]

# Chunks fetched from the database at a time.
FETCH = 16
# While looking for lines that match, at most this much text is read for one page; the cursor then goes on from there.
MAX_READ_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LineQuery:
    """Which lines: of a job, node, rank, attempt; from and to in seconds since the epoch; containing a text."""

    job: str | None = None
    node: str | None = None
    rank: int | None = None
    attempt: int | None = None
    since: float | None = None
    until: float | None = None
    contains: str | None = None

    @property
    def looks_inside(self) -> bool:
        """Whether lines of a chunk are told apart."""
        return self.contains is not None or self.since is not None or self.until is not None

    def chosen(self) -> Select[Any]:
        query = select(Chunk.id).join(Stream, Stream.id == Chunk.stream_id)
        for column, value in (
            (Stream.job, self.job),
            (Stream.node, self.node),
            (Stream.rank, self.rank),
            (Stream.attempt, self.attempt),
        ):
            if value is not None:
                query = query.where(column == value)
        if self.since is not None:
            query = query.where(Chunk.last_time >= self.since)
        if self.until is not None:
            query = query.where(Chunk.first_time <= self.until)
        return query


@dataclass(frozen=True, slots=True)
class Page:
    """`total` is None where counting would mean reading everything; `cursor` is None on the last page."""

    items: list[dict[str, Any]]
    total: int | None
    cursor: str | None


def position_of(cursor: str | None) -> tuple[int, int]:
    """(chunk id, lines of it already given)."""
    if cursor is None:
        return 0, 0
    chunk, _, line = cursor.partition(".")
    if not (chunk.isdecimal() and line.isdecimal() and len(cursor) < 40):
        raise Problem(422, "cursor: use the next_cursor of the page before, unchanged")
    return int(chunk), int(line)


def read_page(session: Session, query: LineQuery, cursor: str | None, limit: int) -> Page:
    """Lines in the order in which they arrived."""
    first_chunk, first_line = position_of(cursor)
    chosen = query.chosen().subquery()
    total = None
    if not query.looks_inside:
        total = session.scalar(select(func.coalesce(func.sum(Chunk.lines), 0)).where(Chunk.id.in_(select(chosen))))
    wanted = None if query.contains is None else query.contains.encode("utf-8", "replace")
    items: list[dict[str, Any]] = []
    read_bytes = 0
    for chunk, stream in chunks_from(session, chosen, first_chunk):
        skip = first_line if chunk.id == first_chunk else 0
        for number, line in enumerate(decode_chunk(chunk.data)):
            if number < skip:
                continue
            if len(items) == limit:
                return Page(items, total, f"{chunk.id}.{number}")
            seconds = line.time_ns / 1e9
            if (query.since is not None and seconds < query.since) or (query.until is not None and seconds > query.until):
                continue
            if wanted is None or wanted in line.text:
                items.append(line_document(stream, line.number, seconds, line.text))
        read_bytes += chunk.raw_bytes
        if read_bytes > MAX_READ_BYTES:
            return Page(items, total, f"{chunk.id + 1}.0")
    return Page(items, len(items) if total is None and cursor is None else total, None)


def chunks_from(session: Session, chosen: Any, first_chunk: int) -> Iterator[tuple[Chunk, Stream]]:
    after = first_chunk - 1
    while True:
        rows = session.execute(
            select(Chunk, Stream)
            .join(Stream, Stream.id == Chunk.stream_id)
            .where(Chunk.id > after, Chunk.id.in_(select(chosen)))
            .order_by(Chunk.id)
            .limit(FETCH)
        ).all()
        for chunk, stream in rows:
            yield chunk, stream
            session.expunge(chunk)
            after = chunk.id
        if len(rows) < FETCH:
            return


def line_document(stream: Stream, number: int, seconds: float, text: bytes) -> dict[str, Any]:
    return {
        "job": stream.job,
        "attempt": stream.attempt,
        "node": stream.node,
        "rank": stream.rank,
        "path": stream.path,
        "number": number or None,
        "time": timestamp(seconds),
        "line": text.decode("utf-8", "replace"),
        "trust": stream.trust,
        "labels": stream.labels,
    }


def streams_of(session: Session, job: str, attempt: int | None) -> list[Stream]:
    """The streams of one attempt of a job, and those of the job that name no attempt."""
    query = select(Stream).where(Stream.job == job)
    if attempt is not None:
        query = query.where((Stream.attempt == attempt) | Stream.attempt.is_(None))
    return list(session.scalars(query.order_by(Stream.id)))


def node_streams(session: Session, nodes: Iterable[str]) -> list[Stream]:
    """What these nodes say by themselves, for no job: kernel, drivers, scheduler. Nodes go by any of their names."""
    names = set(nodes)
    if not names:
        return []
    names |= set(session.scalars(select(NodeAlias.node).where(NodeAlias.alias.in_(names))))
    names |= set(session.scalars(select(NodeAlias.alias).where(NodeAlias.node.in_(names))))
    return list(session.scalars(select(Stream).where(Stream.job.is_(None), Stream.node.in_(names)).order_by(Stream.id)))
