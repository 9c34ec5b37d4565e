"""Counts per source: gathered in memory, written with the lines they count or, for errors alone, within a second or so."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from math import exp

from sqlalchemy.orm import Session

from service.store.database import insert_or_add
from service.store.logs import Origin

__all__ = ["OriginCounts", "Origins", "write_counts"]

# The rate of a source is averaged over about this long.
RATE_SECONDS = 30.0
MAX_RATES = 10_000


@dataclass(slots=True)
class OriginCounts:
    """What one source sent since the counts were last written."""

    protocol: str
    lines: int = 0
    bytes: int = 0
    dropped: int = 0
    errors: int = 0
    last_error: str | None = None
    last_line_time: float | None = None


class Origins:
    """Errors may be noted from any thread; the rest belongs to the writer's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: dict[str, OriginCounts] = {}
        self._rates: dict[str, tuple[float, float]] = {}

    def note_error(self, origin: str, protocol: str, why: str) -> None:
        with self._lock:
            counts = self._errors.setdefault(origin, OriginCounts(protocol))
            counts.errors += 1
            counts.last_error = why

    def take_errors(self) -> dict[str, OriginCounts]:
        """The errors noted since the last call."""
        with self._lock:
            taken, self._errors = self._errors, {}
        return taken

    def rate(self, origin: str, lines: int, now: float) -> float:
        """Lines a second, after `lines` more."""
        if len(self._rates) > MAX_RATES:
            self._rates.clear()
        before, at = self._rates.get(origin, (0.0, now))
        fresh = before * exp(-max(0.0, now - at) / RATE_SECONDS) + lines / RATE_SECONDS
        self._rates[origin] = (fresh, now)
        return round(fresh, 2)


def write_counts(session: Session, counted: dict[str, OriginCounts], rates: dict[str, float], now: float) -> None:
    """Add to each source's totals, in the caller's transaction."""
    rows = [
        {
            "name": name,
            "protocol": counts.protocol,
            "first_seen": now,
            "last_seen": now,
            "last_line_time": counts.last_line_time,
            "lag_seconds": None if counts.last_line_time is None else max(0.0, now - counts.last_line_time),
            "lines": counts.lines,
            "bytes": counts.bytes,
            "dropped": counts.dropped,
            "errors": counts.errors,
            "last_error": counts.last_error,
            "report": {"lines_per_second": rates.get(name, 0.0)},
        }
        for name, counts in sorted(counted.items())
    ]
    added = ("lines", "bytes", "dropped", "errors")
    heard = [row for row in rows if row["lines"]]
    failed = [row for row in rows if not row["lines"]]
    if heard:
        replaced = ("last_seen", "last_line_time", "lag_seconds", "protocol", "report")
        insert_or_add(session, Origin, heard, keys=("name",), added=added, replaced=replaced)
    if failed:
        insert_or_add(session, Origin, failed, keys=("name",), added=added, replaced=("last_seen", "last_error"))
