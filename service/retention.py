"""How long what is stored stays: lines by age and bytes, per job and in all; what open incidents rest on stays with them."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import BigInteger, Select, and_, delete, func, or_, select, text

from service.ingest.recent import RECENT_SECONDS
from service.periodic import repeat
from service.settings import Settings
from service.store import Clock, Store
from service.store.events import Event
from service.store.incidents import Failure, Incident
from service.store.jobs import NodeAlias
from service.store.logs import Batch, Chunk, RecentRecords, Stream
from service.store.slurm import SlurmWord
from service.timeline import IncidentState, move

__all__ = ["Retention", "Storage", "used_bytes"]

log = logging.getLogger("pitstop.service")

MEASURE_SECONDS = 5.0
# Deleted in one transaction: the writer of kept lines waits for no more than that.
CHUNKS_AT_ONCE = 200
# When the budget is nearly used, the oldest goes until this much of it is.
FULL, TRIM_ABOVE, TRIM_TO = 0.95, 0.90, 0.85
# What PostgreSQL takes for a chunk besides its data: header, other columns, and its places in three indexes.
ROW_BYTES = 250
NAMED_BATCH_SECONDS = 7 * 86400.0
# Around a failure, what an open incident rests on stays.
PINNED_BEFORE_SECONDS, PINNED_AFTER_SECONDS = 6 * 3600.0, 3600.0


def used_bytes(store: Store, enough: float = 0.0) -> int:
    """What the database holds, without the room that deleted rows left.

    PostgreSQL keeps that room within its tables, for later rows. Where all of it is more than `enough`, the rows of kept lines
    are added up instead; up to that their whole tables count.
    """
    with store.reading() as session:
        if store.is_sqlite:
            pages = session.scalar(text("SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count"))
            return int(pages or 0) * int(session.scalar(text("SELECT page_size FROM pragma_page_size")) or 0)
        whole = int(session.scalar(text("SELECT pg_database_size(current_database())")) or 0)
        if whole <= enough:
            return whole
        table = session.scalar(select(func.pg_total_relation_size(Chunk.__tablename__))) or 0
        data = func.coalesce(func.sum(func.pg_column_size(Chunk.data), type_=BigInteger), 0)
        kept, count = session.execute(select(data, func.count()).select_from(Chunk)).one()
        return int(whole - table + kept + count * ROW_BYTES)


class Storage:
    """Whether there is room for more lines; measured every few seconds, asked for every body."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._stopping = asyncio.Event()
        self.refusal: str | None = None
        self.used = 0

    async def run(self) -> None:
        """Measure until `close`."""
        await repeat(self.measure, MEASURE_SECONDS, self._stopping, "the size of the store cannot be measured")

    def close(self) -> None:
        self._stopping.set()

    def measure(self) -> None:
        """Look again. The disk counts where the database is a file on it."""
        budget = self._settings.max_stored_bytes
        self.used = used_bytes(self._store, TRIM_TO * budget)
        self.refusal = None
        if self.used >= FULL * budget:
            self.refusal = (
                f"the store holds {self.used} bytes, {FULL:.0%} of its budget of {budget} or more (PITSTOP_MAX_STORED_BYTES)"
            )
        elif self._store.is_sqlite:
            disk = os.statvfs(Path(self._store.url.database or ".").absolute().parent)
            if disk.f_blocks and disk.f_bavail < (1 - FULL) * disk.f_blocks:
                self.refusal = f"the disk under {self._store.url.database} is more than {FULL:.0%} full: make room there"

    def check(self) -> str:
        """`ok`, or what is wrong, for /readyz."""
        return self.refusal or "ok"


@dataclass(slots=True)
class Retention:
    """The duty. Works in small transactions."""

    store: Store
    settings: Settings
    clock: Clock

    def work(self) -> None:
        now = self.clock()
        self._forget(now)
        self._settle_incidents(now)
        self._trim_ages(now)
        self._trim_jobs()
        self._trim_all()

    def _forget(self, now: float) -> None:
        with self.store.writing() as session:
            session.execute(delete(RecentRecords).where(RecentRecords.stored_at < now - RECENT_SECONDS))
            session.execute(delete(Batch).where(Batch.stored_at < now - NAMED_BATCH_SECONDS))
            events_until = now - self.settings.event_days * 86400
            session.execute(delete(Event).where(Event.time < events_until))
            session.execute(delete(SlurmWord).where(SlurmWord.done, SlurmWord.received_at < events_until))

    def _settle_incidents(self, now: float) -> None:
        """A verified recovery stays visible for the hold, in case it does not last; then its incident is closed."""
        hold = self.settings.flap_hold_seconds
        with self.store.writing() as session:
            verified = select(Incident).where(
                Incident.state == IncidentState.VERIFIED.value, Incident.last_seen < now - hold, Incident.closed_at.is_(None)
            )
            for incident in session.scalars(verified.limit(CHUNKS_AT_ONCE)):
                move(
                    session,
                    incident,
                    IncidentState.RESOLVED,
                    f"nothing new for {hold / 60:.0f} minutes after it was verified",
                    at=now,
                )

    def _trim_ages(self, now: float) -> None:
        self._delete(deletable().where(Chunk.stored_at < now - self.settings.log_days * 86400))

    def _trim_jobs(self) -> None:
        limit = self.settings.max_job_log_bytes
        # PostgreSQL would else compare with a number of four bytes.
        size = func.sum(Chunk.raw_bytes, type_=BigInteger)
        with self.store.reading() as session:
            sizes = session.execute(
                select(Stream.job, size)
                .join(Chunk, Chunk.stream_id == Stream.id)
                .where(Stream.job.is_not(None))
                .group_by(Stream.job)
                .having(size > limit)
            ).all()
        for job, bytes_kept in sizes:
            self._delete(deletable().where(Stream.job == job), bytes_kept - limit)

    def _trim_all(self) -> None:
        budget = self.settings.max_stored_bytes
        used = used_bytes(self.store, TRIM_TO * budget)
        if used <= TRIM_ABOVE * budget:
            return
        # What a line takes in the store is not known beforehand: delete by bytes of lines, and look again.
        while used > TRIM_TO * budget and self._delete(deletable(), used - int(TRIM_TO * budget)):
            used = used_bytes(self.store, TRIM_TO * budget)

    def _delete(self, chosen: Select[int, int], surplus: int | None = None) -> int:
        """Delete the oldest of `chosen` until `surplus` bytes of lines are gone, or all of them. Returns the bytes deleted."""
        deleted = 0
        while surplus is None or deleted < surplus:
            ids = []
            with self.store.writing() as session:
                for number, size in session.execute(chosen.limit(CHUNKS_AT_ONCE)):
                    ids.append(number)
                    deleted += size
                    if surplus is not None and deleted >= surplus:
                        break
                session.execute(delete(Chunk).where(Chunk.id.in_(ids)))
            if not ids:
                break
        return deleted


def deletable() -> Select[int, int]:
    """(id, bytes of lines) of chunks that no open incident rests on, oldest first.

    It rests on what the job said around the failure, and what the node that is at fault said by itself, under any of its names.
    """
    names = select(NodeAlias.alias).where(NodeAlias.node == Incident.node)
    pinned = (
        select(Failure.id)
        .join(Incident, Incident.id == Failure.incident_id)
        .where(
            Incident.closed_at.is_(None),
            # Not all that a job ever says while its incident is open: that would fill the store.
            Chunk.stored_at.between(Failure.reported_at - PINNED_BEFORE_SECONDS, Failure.reported_at + PINNED_AFTER_SECONDS),
            or_(
                and_(Failure.job == Stream.job, Failure.attempt == func.coalesce(Stream.attempt, Failure.attempt)),
                and_(Stream.job.is_(None), or_(Stream.node == Incident.node, Stream.node.in_(names))),
            ),
        )
        .exists()
    )
    return select(Chunk.id, Chunk.raw_bytes).join(Stream, Stream.id == Chunk.stream_id).where(~pinned).order_by(Chunk.id)
