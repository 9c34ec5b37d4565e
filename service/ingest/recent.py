"""Records that came in the last minutes, by digest: a sender that did not hear our answer sends them again, batched differently.

Kept lines only; a body sent again unchanged is known as a whole (see writer.py). Durable: one row of digests per commit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.store.logs import RecentRecords

__all__ = ["DIGEST_BYTES", "RECENT_SECONDS", "RecentDigests"]

RECENT_SECONDS = 600.0
# Digests held in memory, about 60 bytes each. Under a flood of kept lines the window gets shorter than RECENT_SECONDS.
MAX_DIGESTS = 1_000_000
DIGEST_BYTES = 8


class RecentDigests:
    """Two generations of digests; the older one goes when the younger is full or RECENT_SECONDS old."""

    def __init__(self) -> None:
        self._young: set[int] = set()
        self._old: set[int] = set()
        self._begun = 0.0
        self._read_to = 0

    def catch_up(self, session: Session, now: float) -> None:
        """Read what other writers, or this one before a restart, have stored since."""
        rows = session.execute(
            select(RecentRecords.id, RecentRecords.digests)
            .where(RecentRecords.id > self._read_to, RecentRecords.stored_at >= now - RECENT_SECONDS)
            .order_by(RecentRecords.id)
        )
        for number, digests in rows:
            self._add(unpacked(digests), now)
            self._read_to = number

    def seen(self, digests: bytes) -> list[int]:
        """The positions of those of `digests` that came before."""
        return [position for position, digest in enumerate(unpacked(digests)) if digest in self._young or digest in self._old]

    def store(self, session: Session, digests: bytes, now: float) -> None:
        """Write digests down. They count as seen once the transaction is committed and `catch_up` has read them."""
        session.add(RecentRecords(stored_at=now, digests=digests))

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
