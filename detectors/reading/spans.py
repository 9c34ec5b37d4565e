"""How much each rank wrote, and when it began and ended: silence must stay visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detectors.reading.text import Origin, line_text, origin_of_text
from detectors.reading.timestamps import Stamps
from rules.findings import RankSpan
from rules.signal import Line

__all__ = ["SpanTracker"]


@dataclass(slots=True)
class Open:
    lines: int
    first_time: float | None
    last_time: float | None
    last: tuple[int, bytes]


class SpanTracker:
    """Follows the ranks of one source, block by block."""

    def __init__(self, path: str, path_origin: Origin, stamps: Stamps) -> None:
        self._path = path
        self._path_origin = path_origin
        self._stamps = stamps
        self._open: dict[int, Open] = {}

    def observe(self, first: int, lines: Sequence[bytes]) -> None:
        """`lines` follow one another from number `first`."""
        last: dict[int, int] = {}
        counts: dict[int, int] = {}
        for index, raw in enumerate(lines):
            origin, _ = origin_of_text(raw[:96].decode("latin-1"))
            rank = self._path_origin.rank if origin.rank is None else origin.rank
            if rank is not None:
                last[rank] = index
                counts[rank] = counts.get(rank, 0) + 1
        for rank, index in last.items():
            time = self._stamps.read(line_text(lines[index]))
            if time is not None and self._stamps.is_future(time):
                time = None
            span = self._open.get(rank)
            if span is None:
                self._open[rank] = Open(counts[rank], time, time, (first + index, lines[index]))
                continue
            span.lines += counts[rank]
            span.last = (first + index, lines[index])
            if time is not None:
                span.first_time = time if span.first_time is None else span.first_time
                span.last_time = time if span.last_time is None else max(span.last_time, time)

    def spans(self) -> dict[int, RankSpan]:
        result = {}
        for rank, span in self._open.items():
            number, raw = span.last
            line = Line(line_text(raw), number, self._path, rank, self._path_origin.node, span.last_time)
            result[rank] = RankSpan(rank, span.lines, span.first_time, span.last_time, line)
        return result
