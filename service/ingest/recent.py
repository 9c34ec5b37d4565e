"""Records that came in the last minutes, by digest: a sender that did not hear our answer sends them again, batched differently.

Kept lines only; a body sent again unchanged is known as a whole (see writer.py). Durable: one row of digests per commit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import cast

from sqlalchemy import Table, bindparam, delete, insert, select
from sqlalchemy.orm import Session

from service.store.logs import RecentRecords

__all__ = ["RECENT_SECONDS", "RecentDigests"]

RECENT_SECONDS = 600.0
# Digests held in memory, about 60 bytes each. Under a flood of kept lines the window gets shorter than RECENT_SECONDS.
MAX_DIGESTS = 1_000_000

LATER_RECORDS = (
    select(RecentRecords.id, RecentRecords.digests)
    .where(RecentRecords.id > bindparam("read_to"), RecentRecords.stored_at >= bindparam("since"))
    .order_by(RecentRecords.id)
)
INSERT_RECORDS = insert(cast(Table, RecentRecords.__table__))


class RecentDigests:
    """Two generations of digests; the older one goes when the younger is full or RECENT_SECONDS old."""

    def __init__(self) -> None:
        self._young: set[int] = set()
        self._old: set[int] = set()
        self._begun = 0.0
        self._read_to = 0
        # Noted since the last `store`.
        self._fresh: dict[int, None] = {}

    def catch_up(self, session: Session, now: float) -> None:
        """Read what other writers, or this one before a restart, have stored since."""
        for number, digests in session.connection().execute(
            LATER_RECORDS, {"read_to": self._read_to, "since": now - RECENT_SECONDS}
        ):
            self._add(unpacked(digests), now)
            self._read_to = number

    def note_new(self, digests: bytes) -> bool:
        """Note `digests` where none of them came before; whether that is so."""
        values = dict.fromkeys(unpacked(digests))
        came_before = any(not known.isdisjoint(values) for known in (self._young, self._old, self._fresh.keys()))
        if not came_before:
            self._fresh |= values
        return not came_before

    def note(self, digests: bytes) -> set[int]:
        """Note `digests`; the positions of those that came before."""
        repeated = set()
        for position, digest in enumerate(unpacked(digests)):
            if digest in self._young or digest in self._old or digest in self._fresh:
                repeated.add(position)
            else:
                self._fresh[digest] = None
        return repeated

    def store(self, session: Session, now: float) -> None:
        """Write down what was noted. Where the transaction fails, this object is of no use any more."""
        if self._fresh:
            row = {"stored_at": now, "digests": array("Q", self._fresh).tobytes()}
            key = session.connection().execute(INSERT_RECORDS, row).inserted_primary_key
            # Whoever writes holds the lock: all that others stored before has been read.
            self._read_to = key[0] if key is not None else self._read_to
            self._add(self._fresh, now)
            self._fresh = {}

    def forget(self, session: Session, now: float) -> None:
        """Delete what is too old to matter."""
        session.execute(delete(RecentRecords).where(RecentRecords.stored_at < now - RECENT_SECONDS))

    def _add(self, digests: Iterable[int], now: float) -> None:
        if now - self._begun > RECENT_SECONDS or len(self._young) > MAX_DIGESTS // 2:
            self._old, self._young, self._begun = self._young, set(), now
        self._young.update(digests)


def unpacked(digests: bytes) -> array[int]:
    values = array("Q")
    values.frombytes(digests)
    return values
