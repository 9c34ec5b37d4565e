"""Sift the lines of a block by shape: drop, keep, or ask.

The contract and a plain Python form of it. Where the C form (rules/_sifter.c) was built at installation it is taken instead: the
same answers, several times as fast (docs/decisions/0012).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from rules.scan_verdicts import KEEP
from rules.shapes import Span, shape_of

__all__ = [
    "ASK",
    "NO_RANK",
    "Note",
    "Noted",
    "Point",
    "PythonSifter",
    "RankReport",
    "SeriesReport",
    "Sifter",
    "SifterReport",
    "new_sifter",
]

# In place of the number of a routine rule, beside KEEP: lines of this shape have to be looked at one by one.
ASK = -2
NO_RANK = -1

MAX_SHAPE_BYTES = 8_192
MAX_SHAPES = 65_536
MAX_SERIES = 16
MAX_RANK = 1_048_576
MAX_RANK_RECORDS = 65_536
MAX_LAST_BYTES = 512
TIME_BYTES = 40
SEEN_SHAPES = 65_536
# After so many lines whose shape was seen before, teaching comes first: it spares the rest of the block.
MAX_REPEATED = 32
POINTS_IN_ALL = 8_192
MIN_POINTS = 2
RUN_SLOTS = 1_024
RUN_STRIDE = 31
MAX_POINTS = 128

# count, last, least, most, number of the line with the last
SeriesReport = tuple[int, float, float, float, int]
# line number, what stood up to its second, value by series
Point = tuple[int, bytes, dict[int, float]]
# What is noted of lines of a shape: which note, and up to how many lines apart those of one rank make one run (0: each is one).
Note = tuple[int, int]
# A run of noted lines of one rank in one block: which note, how many, index of the first and of the last; the first line itself,
# where it names a rank or each is a run
Noted = tuple[int, int, int, int, bytes]
# lines, number of the last, its beginning, series, points
RankReport = tuple[int, int, bytes, dict[int, SeriesReport], list[Point]]
# kept lines, kept bytes, dropped lines by rule, ranks
SifterReport = tuple[int, int, list[int], dict[int, RankReport]]


class Sifter(Protocol):
    """Call open_block, then sift and settle and learn what it did not know while there is more, then close_block.

    Report at any time between blocks.
    """

    @property
    def lines(self) -> int:
        """Of all blocks so far."""

    def open_block(self, block: bytes | memoryview, first_number: int, /) -> None:
        """Begin with `block`: whole lines, of which the first has this number."""

    def sift(self) -> tuple[list[int], list[bytes], list[int], bool]:
        """The next lines whose shape is not known: their indexes, the lines, which of them have a shape seen before, and
        whether there is more to sift."""

    def learn(
        self,
        line: bytes,
        rule: int,
        guards: Sequence[Span],
        rank: Span | None,
        second: Span | None,
        values: Sequence[tuple[int, int, int]],
        note: Note | None,
        /,
    ) -> None:
        """Lines of the shape of `line` that agree with it within `guards` fall to `rule` (or KEEP, ASK).

        Their rank stands at `rank`, their time up to `second`, and `values` are (series, start, end) of numbers in them.
        """

    def noted(self) -> list[Noted]:
        """The runs of noted lines in this block, to be asked for before it is closed."""

    def settle(self, indexes: list[int], rules: list[int], ranks: list[int], /) -> None:
        """The verdicts on lines that `sift` did not know: for each its rule or KEEP, its rank or NO_RANK."""

    def measure(self, index: int, rank: int, time: bytes, values: tuple[tuple[int, bytes], ...], /) -> None:
        """What a line says: `time` ends with its second; numbers as text, by series."""

    def close_block(self, block: bytes | memoryview, /) -> bytes:
        """The kept lines, each after its number and a tab. `block`: what was sifted, or the same lines as their source has."""

    def report(self) -> SifterReport: ...


def new_sifter(rule_count: int) -> Sifter:
    """A sifter for routine rules numbered below `rule_count`."""
    try:
        # Built at installation where there is a C compiler.
        from rules import _sifter  # type: ignore[attr-defined,unused-ignore]
    except ImportError:
        return PythonSifter(rule_count)
    # The seed keeps a log from being written to collide.
    return cast(Sifter, _sifter.Sifter(rule_count, os.urandom(32)))


class Shape:
    """What was learnt of one shape."""

    __slots__ = ("guards", "line", "note", "rank", "rule", "second", "values")

    def __init__(
        self,
        line: bytes,
        rule: int,
        guards: Sequence[Span],
        rank: Span | None,
        second: Span | None,
        values: Sequence[tuple[int, int, int]],
        note: Note | None,
    ) -> None:
        self.line = line
        self.rule = rule
        self.guards = tuple((start, end, line[start:end]) for start, end in guards)
        self.rank = rank
        self.second = second
        self.values = values
        self.note = note

    def fits(self, line: bytes) -> bool:
        return all(line[start:end] == digits for start, end, digits in self.guards)


class Record:
    """What is kept of one rank."""

    def __init__(self) -> None:
        self.lines = 0
        self.measured = 0
        self.stride = 1
        self.last_number = -1
        self.last_line = b""
        self.last_second = b""
        self.series: dict[int, SeriesReport] = {}
        self.points: list[Point] = []


class PythonSifter:
    """The plain form."""

    def __init__(self, rule_count: int) -> None:
        self._shapes: dict[bytes, list[Shape]] = {}
        self._seen: set[bytes] = set()
        self.lines = 0
        self._dropped = [0] * rule_count
        self._records: dict[int, Record] = {}
        self._point_total = 0
        self._first = 0
        self._lines: list[bytes] = []
        self._next = 0
        self._verdicts: list[int] = []
        self._touched: dict[int, int] = {}
        self._kept_lines = 0
        self._kept_bytes = 0
        self._runs: list[Noted] = []
        # By slot, which several may share: of which note and rank the newest run is, and where it stands in _runs.
        self._newest: dict[int, tuple[tuple[int, int], int]] = {}

    def open_block(self, block: bytes | memoryview, first_number: int, /) -> None:
        lines = bytes(block).split(b"\n")
        if lines.pop():
            raise ValueError("a block holds whole lines and is under 4 GiB")
        self._first, self._lines, self._next = first_number, lines, 0
        self._verdicts = [KEEP] * len(lines)
        self._touched = {}
        self._runs, self._newest = [], {}

    def sift(self) -> tuple[list[int], list[bytes], list[int], bool]:
        indexes: list[int] = []
        repeated: list[int] = []
        before = self._next
        while self._next < len(self._lines) and len(repeated) < MAX_REPEATED:
            index, self._next = self._next, self._next + 1
            line = self._lines[index]
            masked = shape_of(line)
            shape = self._known(masked, line)
            if shape is not None and shape.rule != ASK:
                self._verdicts[index] = shape.rule
                self._apply(shape, line, index)
                continue
            if shape is None and len(line) <= MAX_SHAPE_BYTES and self._noted(masked):
                repeated.append(len(indexes))
            indexes.append(index)
        self.lines += self._next - before
        return indexes, [self._lines[index] for index in indexes], repeated, self._next < len(self._lines)

    def _known(self, masked: bytes, line: bytes) -> Shape | None:
        return next((shape for shape in self._shapes.get(masked, ()) if shape.fits(line)), None)

    def _noted(self, masked: bytes) -> bool:
        if masked in self._seen:
            return True
        if len(self._seen) >= SEEN_SHAPES:
            self._seen.clear()
        self._seen.add(masked)
        return False

    def _apply(self, shape: Shape, line: bytes, index: int) -> None:
        if shape.rule >= 0:
            self._dropped[shape.rule] += 1
        rank = NO_RANK
        if shape.rank is not None:
            digits = line[shape.rank[0] : shape.rank[1]]
            rank = int(digits) if len(digits) <= 7 and digits.isdigit() and int(digits) < MAX_RANK else NO_RANK
        record = self._touch(rank, index)
        if shape.note:
            self._take_note(*shape.note, rank, index, line)
        if shape.values:
            time = line[: shape.second[1]] if shape.second else b""
            values = [(series, number_of(line[start:end])) for series, start, end in shape.values]
            self._measure(record, self._first + index, time, values)

    def _take_note(self, note: int, gap: int, rank: int, index: int, line: bytes) -> None:
        slot = (note * RUN_STRIDE + rank + 1) % RUN_SLOTS
        whose, place = self._newest.get(slot, (None, 0))
        if whose == (note, rank):
            _, count, first, last, first_line = self._runs[place]
            if index - last <= gap:
                self._runs[place] = (note, count + 1, first, index, first_line)
                return
        self._newest[slot] = ((note, rank), len(self._runs))
        self._runs.append((note, 1, index, index, b"" if rank == NO_RANK and gap else line))

    def noted(self) -> list[Noted]:
        return list(self._runs)

    def _record(self, rank: int) -> tuple[int, Record]:
        if rank not in self._records:
            rank = rank if len(self._records) < MAX_RANK_RECORDS else NO_RANK
            return rank, self._records.setdefault(rank, Record())
        return rank, self._records[rank]

    def _touch(self, rank: int, index: int) -> Record:
        rank, record = self._record(rank)
        record.lines += 1
        self._touched[rank] = max(index, self._touched.get(rank, 0))
        return record

    def _measure(self, record: Record, number: int, time: bytes, values: Sequence[tuple[int, float]]) -> None:
        point = self._new_point(record, number, time)
        for series, value in values:
            if value != value:
                continue
            known = record.series.get(series)
            if known is None:
                record.series[series] = (1, value, value, value, number)
            else:
                count, last, least, most, last_number = known
                if number > last_number:
                    last, last_number = value, number
                record.series[series] = (count + 1, last, min(least, value), max(most, value), last_number)
            if point is not None:
                point[series] = value

    def _new_point(self, record: Record, number: int, time: bytes) -> dict[int, float] | None:
        record.measured += 1
        if (record.measured - 1) % record.stride:
            return None
        if len(time) >= 8:
            if time[-8:] == record.last_second:
                return None
            record.last_second = time[-8:]
        if len(record.points) >= min(max(POINTS_IN_ALL // max(len(self._records), 1), MIN_POINTS), MAX_POINTS):
            self._point_total -= len(record.points) // 2
            record.points = record.points[::2]
            record.stride *= 2
        if self._point_total >= 2 * POINTS_IN_ALL:
            return None
        values: dict[int, float] = {}
        record.points.append((number, time[-TIME_BYTES:], values))
        self._point_total += 1
        return values

    def learn(
        self,
        line: bytes,
        rule: int,
        guards: Sequence[Span],
        rank: Span | None,
        second: Span | None,
        values: Sequence[tuple[int, int, int]],
        note: Note | None,
        /,
    ) -> None:
        if len(self._shapes) >= MAX_SHAPES:
            self._shapes.clear()
        self._shapes.setdefault(shape_of(line), []).insert(0, Shape(line, rule, guards, rank, second, values, note))

    def settle(self, indexes: list[int], rules: list[int], ranks: list[int], /) -> None:
        for index, rule, rank in zip(indexes, rules, ranks, strict=True):
            self._verdicts[index] = rule
            if rule >= 0:
                self._dropped[rule] += 1
            self._touch(rank if rank < MAX_RANK else NO_RANK, index)

    def measure(self, index: int, rank: int, time: bytes, values: tuple[tuple[int, bytes], ...], /) -> None:
        record = self._record(rank if rank < MAX_RANK else NO_RANK)[1]
        self._measure(record, self._first + index, time, [(series, number_of(text)) for series, text in values])

    def close_block(self, block: bytes | memoryview, /) -> bytes:
        if self._next != len(self._lines):
            raise ValueError("the block was not sifted to its end")
        lines = bytes(block).split(b"\n")
        if lines.pop() or len(lines) != len(self._lines):
            raise ValueError("not as many lines as were sifted")
        parts = []
        for index, verdict in enumerate(self._verdicts):
            if verdict < 0:
                parts.append(b"%d\t%b\n" % (self._first + index, lines[index]))
                self._kept_bytes += len(lines[index]) + 1
        self._kept_lines += len(parts)
        for rank, index in self._touched.items():
            record = self._records[rank]
            record.last_number = self._first + index
            record.last_line = lines[index][:MAX_LAST_BYTES]
        self._lines, self._verdicts, self._touched, self._next = [], [], {}, 0
        return b"".join(parts)

    def report(self) -> SifterReport:
        ranks: Mapping[int, RankReport] = {
            rank: (record.lines, record.last_number, record.last_line, dict(record.series), list(record.points))
            for rank, record in sorted(self._records.items())
        }
        return self._kept_lines, self._kept_bytes, list(self._dropped), dict(ranks)


def number_of(text: bytes) -> float:
    """Decimal text to the nearest double; NaN where it is no plain number of at most 18 digits."""
    digits = text.lower().partition(b"e")[0].lstrip(b"+-").replace(b".", b"", 1)
    if not digits.isdigit() or len(digits) > 18:
        return float("nan")
    try:
        return float(text)
    except ValueError:
        return float("nan")
