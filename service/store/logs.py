"""Kept log lines: append-only compressed chunks per stream, counts of what was dropped, and the sources that sent them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Float, ForeignKey, Index, Integer, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.store.database import Base, BigId

__all__ = ["Batch", "Chunk", "DroppedLines", "Origin", "RecentRecords", "Stream"]


class Stream(Base):
    """Lines of one origin: what a job's rank wrote to one path, a node's kernel log, a set of Loki labels."""

    __tablename__ = "streams"
    __table_args__ = (Index("ix_streams_job_rank", "job", "rank"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    key: Mapped[str] = mapped_column(String(64), unique=True)
    origin: Mapped[str] = mapped_column(String(255))
    trust: Mapped[str] = mapped_column(String(16))
    job: Mapped[str | None] = mapped_column(String(255))
    attempt: Mapped[int | None] = mapped_column(Integer)
    node: Mapped[str | None] = mapped_column(String(255), index=True)
    rank: Mapped[int | None] = mapped_column(Integer)
    path: Mapped[str] = mapped_column(Text)
    labels: Mapped[dict[str, str]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(Float)


class Chunk(Base):
    """Some lines of a stream in order, as zstd frames; see service/chunks.py for what is inside."""

    __tablename__ = "chunks"
    __table_args__ = (UniqueConstraint("stream_id", "sequence"), Index("ix_chunks_last_time", "last_time"))

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    stream_id: Mapped[int] = mapped_column(ForeignKey("streams.id"))
    sequence: Mapped[int] = mapped_column(Integer)
    lines: Mapped[int] = mapped_column(Integer)
    raw_bytes: Mapped[int] = mapped_column(Integer)
    first_time: Mapped[float] = mapped_column(Float)
    last_time: Mapped[float] = mapped_column(Float)
    stored_at: Mapped[float] = mapped_column(Float)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class Batch(Base):
    """A batch id that was stored, with the answer that it got: sent again, it gets the same answer and stores nothing."""

    __tablename__ = "batches"

    id: Mapped[str] = mapped_column(String(320), primary_key=True)
    accepted: Mapped[int] = mapped_column(Integer)
    kept: Mapped[int] = mapped_column(Integer)
    dropped: Mapped[int] = mapped_column(Integer)
    stored_at: Mapped[float] = mapped_column(Float, index=True)


class RecentRecords(Base):
    """Digests (8 bytes each) of kept lines of one commit, to recognise records that are sent again."""

    __tablename__ = "recent_records"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    stored_at: Mapped[float] = mapped_column(Float, index=True)
    digests: Mapped[bytes] = mapped_column(LargeBinary)


class DroppedLines(Base):
    """How many lines of a stream compression dropped, per routine rule."""

    __tablename__ = "dropped_lines"

    stream_id: Mapped[int] = mapped_column(ForeignKey("streams.id"), primary_key=True)
    rule: Mapped[str] = mapped_column(String(64), primary_key=True)
    lines: Mapped[int] = mapped_column(BigId)


class Origin(Base):
    """Who sends lines or alerts (an agent, a Loki tenant, Alertmanager), with its totals since it was first seen."""

    __tablename__ = "origins"

    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    protocol: Mapped[str] = mapped_column(String(16))
    first_seen: Mapped[float] = mapped_column(Float)
    last_seen: Mapped[float] = mapped_column(Float)
    last_line_time: Mapped[float | None] = mapped_column(Float)
    lag_seconds: Mapped[float | None] = mapped_column(Float)
    lines: Mapped[int] = mapped_column(BigId, default=0)
    bytes: Mapped[int] = mapped_column(BigId, default=0)
    dropped: Mapped[int] = mapped_column(BigId, default=0)
    errors: Mapped[int] = mapped_column(BigId, default=0)
    last_error: Mapped[str | None] = mapped_column(Text)
    report: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
