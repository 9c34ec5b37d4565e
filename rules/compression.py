"""Drop what is routine, keep what matters: each line of a log either falls to a routine rule or is kept under its number.

A line in which any pattern of a signal rule is found is kept, whatever routine rules say. Dropped lines leave counts per rule,
the last line of each rank, and the numbers that routine rules capture (step, loss, iteration time) as measurements per rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rules.matcher import Hit, Matcher
from rules.pack import CAPTURES, Rule, RuleRole
from rules.patterns import parse_pattern
from rules.shapes import ShapePatterns, Span, judge, preferred, shape_of
from rules.sifter import ASK, KEEP, MAX_SERIES, NO_RANK, RankReport, Sifter, new_sifter, number_of
from rules.signal import Measurement

__all__ = ["CompressionReport", "Compressor", "RankPrefix", "RankTrace", "Reading", "Series", "Sifted", "measurements_of"]

# The shape judged in one block at most; a log of ever new shapes must not cost more than looking at its lines does.
MAX_JUDGED = 64
CLOCK = re.compile(rb"\d\d:\d\d:\d\d")
CLOCK_BYTES = 128
STEP = "step"
RANK = "rank"
# What stands up to the second in the longest usual stamp: 2025-11-28 09:57:52
STAMP_BYTES = 19


class RankPrefix(Protocol):
    """Where a line names the rank that wrote it: the span of its digits, wherever those of lines of the same shape stand too."""

    def __call__(self, line: bytes, /) -> Span | None: ...


@dataclass(frozen=True, slots=True)
class Sifted:
    """One block: kept lines, each after its number and a tab, and the hits of signal rules in them (by index in the block)."""

    kept: bytes
    hits: tuple[Hit, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One measured quantity of one rank."""

    count: int
    last: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The quantities of one line, with its number and time (seconds since the epoch). At most one a second, fewer if many."""

    number: int
    time: float | None
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RankTrace:
    """What is left of one rank's lines, dropped and kept alike. `last_line` is its beginning."""

    lines: int
    last_number: int
    last_line: str
    last_time: float | None
    series: Mapping[str, Series]
    readings: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class CompressionReport:
    """Sums over all blocks. Rank None: lines that name no rank."""

    kept_lines: int
    kept_bytes: int
    dropped_by_rule: Mapping[str, int]
    ranks: Mapping[int | None, RankTrace]


class Compressor:
    """Feeds on the blocks of one source in order; memory stays bounded."""

    def __init__(self, matcher: Matcher, shapes: ShapePatterns, rank_prefix: RankPrefix, sifter: Sifter | None = None) -> None:
        """`sifter`: another one than new_sifter's, for tests."""
        self._matcher = matcher
        self._shapes = shapes
        self._rank_prefix = rank_prefix
        self._sifter = sifter or new_sifter(len(matcher.rules))
        self._routine = [rule.role is RuleRole.ROUTINE for rule in matcher.rules]
        self._names = series_names(matcher.rules)
        self._series = {name: number for number, name in enumerate(self._names)}

    def feed(self, block: bytes, first_number: int, original: bytes | None = None) -> Sifted:
        """`block`: whole lines to judge, the first numbered `first_number`; `original`: the same lines as they are to be kept."""
        unknown = self._sifter.sift(block, first_number)
        hits: list[Hit] = []
        if unknown:
            rules = self._look_at(block, unknown, hits)
            fresh: dict[bytes, tuple[bytes, int]] = {}
            for (index, start, end, repeated), rule in zip(unknown, rules, strict=True):
                line = block[start:end]
                rank, time, values = self._read(line, rule)
                self._sifter.settle(index, rule, rank, time, values)
                if repeated and len(fresh) < MAX_JUDGED:
                    fresh.setdefault(shape_of(line), (line, rule))
            self._learn(list(fresh.values()))
        return Sifted(self._sifter.close_block(block if original is None else original), tuple(hits))

    def _look_at(self, block: bytes, unknown: Sequence[tuple[int, int, int, bool]], hits: list[Hit]) -> list[int]:
        """The routine rule to which each unknown line falls, or KEEP; appends the hits of signal rules."""
        first: list[int | None] = [None] * len(unknown)
        signal: set[int] = set()
        for hit in self._matcher.scan(b"".join([block[start : end + 1] for _, start, end, _ in unknown])):
            if self._routine[hit.rule]:
                first[hit.line] = preferred(self._shapes.precedence, first[hit.line], hit.rule)
            else:
                signal.add(hit.line)
                hits.append(Hit(unknown[hit.line][0], hit.rule, hit.clause, hit.ordinal))
        for line in signal:
            first[line] = None
        return [KEEP if rule is None else rule for rule in first]

    def _read(self, line: bytes, rule: int) -> tuple[int, bytes, tuple[tuple[int, float], ...]]:
        """Rank, time and values of a line that `rule` drops, or that is kept."""
        spans = self._matcher.capture_spans(rule, line) if rule >= 0 else {}
        rank_span = spans.get(RANK) or self._rank_prefix(line)
        rank = int(line[rank_span[0] : rank_span[1]]) if rank_span else NO_RANK
        captured = self._measured(spans)
        if not captured:
            return rank, b"", ()
        second = clock_span(line)
        values = tuple((series, number_of(line[start:end])) for series, start, end in captured)
        return rank, line[: second[1]] if second else b"", values

    def _measured(self, spans: Mapping[str, Span]) -> tuple[tuple[int, int, int], ...]:
        """(series, start, end) of the captured numbers that are measured."""
        return tuple((self._series[name], start, end) for name, (start, end) in spans.items() if name in self._series)

    def _learn(self, lines: Sequence[tuple[bytes, int]]) -> None:
        if not lines:
            return
        for (line, rule), judgement in zip(lines, judge(self._shapes, [line for line, _ in lines]), strict=True):
            expected = None if rule == KEEP else rule
            if (
                judgement is None
                or judgement.rule != expected
                or not (rule == KEEP or self._matcher.captures_are_digit_blind(rule))
            ):
                self._sifter.learn(line, ASK, (), None, None, ())
                continue
            spans = self._matcher.capture_spans(rule, line) if rule >= 0 else {}
            values = self._measured(spans)
            second = clock_span(line) if values else None
            self._sifter.learn(line, rule, judgement.guards, spans.get(RANK) or self._rank_prefix(line), second, values)

    def report(self, read_time: Callable[[str], float | None]) -> CompressionReport:
        """What was dropped, and what is left of it. `read_time` gives the time that a text bears, in seconds since the epoch."""
        kept_lines, kept_bytes, dropped, ranks = self._sifter.report()
        times: dict[str, float | None] = {}

        def time_of(text: str) -> float | None:
            if text not in times:
                times[text] = read_time(text)
            return times[text]

        return CompressionReport(
            kept_lines,
            kept_bytes,
            {rule.code: count for rule, count in zip(self._matcher.rules, dropped, strict=True) if count},
            {None if rank == NO_RANK else rank: self._trace(found, time_of) for rank, found in ranks.items()},
        )

    def _trace(self, found: RankReport, time_of: Callable[[str], float | None]) -> RankTrace:
        lines, last_number, last_line, series, points = found
        text = last_line.decode("utf-8", "replace")
        return RankTrace(
            lines,
            last_number,
            text,
            time_of(text),
            {self._names[number]: Series(count, last, least, most) for number, (count, last, least, most, _) in series.items()},
            tuple(
                Reading(number, time_of(stamp_text(time)), {self._names[series]: value for series, value in values.items()})
                for number, time, values in sorted(points)
            ),
        )


def series_names(rules: Sequence[Rule]) -> tuple[str, ...]:
    """The quantities that routine rules measure: what they capture beyond the names that ranking reads, and the step."""
    names = {STEP: None}
    for rule in rules:
        if rule.role is RuleRole.ROUTINE:
            for pattern in rule.captures:
                for name in sorted(parse_pattern(pattern).group_names):
                    if name not in CAPTURES:
                        names[name] = None
    return tuple(names)[:MAX_SERIES]


def clock_span(line: bytes) -> Span | None:
    match = CLOCK.search(line, 0, CLOCK_BYTES)
    return match.span() if match else None


def stamp_text(time: bytes) -> str:
    """The stamp alone, which lines of many ranks share, of the text up to its second."""
    return time[-STAMP_BYTES:].decode("latin-1")


def measurements_of(report: CompressionReport) -> Iterator[Measurement]:
    """Every reading and the last value of every series, as findings hold them."""
    for rank, trace in report.ranks.items():
        for reading in trace.readings:
            step = reading.values.get(STEP)
            for name, value in reading.values.items():
                if name != STEP:
                    yield Measurement(name, value, rank, None if step is None else int(step), reading.time)
        last_step = trace.series.get(STEP)
        for name, series in trace.series.items():
            if name != STEP:
                yield Measurement(name, series.last, rank, int(last_step.last) if last_step else None, trace.last_time)
