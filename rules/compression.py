"""Drop what is routine, keep what matters: each line of a log either falls to a routine rule or is kept under its number.

A line in which a signal rule finds what it looks for (`any` or `all`) is kept, whatever routine rules say; what stands under
`none` only speaks against a rule, and is reported. Dropped lines leave counts per rule, the last line of each rank, and the
numbers that routine rules capture (step, loss, iteration time) as measurements per rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import re2

from rules.matcher import Clause, Hit, Matcher, byte_options
from rules.pack import CAPTURES, Rule, RuleRole
from rules.scan_verdicts import CONDITION, KEEP, SIGNAL, new_verdicts
from rules.shapes import ANY_DIGIT, Hints, Judgement, ShapePatterns, Span, judge, shape_of, with_known, with_unknown_digits
from rules.sifter import ASK, MAX_SERIES, NO_RANK, RankReport, Sifter, new_sifter
from rules.sightings import BlockSightings, ConditionRun, Sightings

__all__ = [
    "CompressionReport",
    "Compressor",
    "RankPrefix",
    "RankTrace",
    "Reading",
    "Series",
    "Sifted",
]

CLOCK = re.compile(rb"\d\d:\d\d:\d\d")
COLON_PLACE = 2
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
    """One block: kept lines, each after its number and a tab, and what is found of signal rules.

    `hits` are what signal rules look for, `hit_lines` their lines by index in the block. Lines in which conditions stand come as
    runs: of one rank, nowhere further apart than the `run_gap` of the rules.
    """

    kept: bytes
    hits: tuple[Hit, ...]
    hit_lines: Mapping[int, bytes]
    conditions: tuple[ConditionRun, ...] = ()


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

    def __init__(
        self,
        matcher: Matcher,
        shapes: ShapePatterns,
        rank_prefix: RankPrefix,
        sifter: Sifter | None = None,
        collect_hits: bool = True,
    ) -> None:
        """`sifter`: another one than new_sifter's, for tests. `collect_hits`: whether `feed` gives the hits of signal rules."""
        self._matcher = matcher
        self._shapes = shapes
        self._rank_prefix = rank_prefix
        self._sifter = sifter or new_sifter(len(matcher.rules))
        self._collect_hits = collect_hits
        # By pattern: the place of its routine rule in the order of precedence, or SIGNAL, or CONDITION.
        self._standing = [
            standing_of(matcher.rules[rule], clause, shapes.precedence[rule]) for rule, clause, _ in matcher.references
        ]
        self._verdicts = new_verdicts(self._standing, len(matcher.rules), collect_hits)
        # KEEP, which is -1, is none of them.
        self._by_precedence = [*sorted(range(len(matcher.rules)), key=shapes.precedence.__getitem__), KEEP]
        self._certain_patterns: dict[int, Any] = {}
        telling = [
            pattern
            for pattern, (_, clause, _) in enumerate(matcher.references)
            if clause is Clause.ANY and self._standing[pattern] == SIGNAL
        ]
        self._sightings = Sightings(matcher, frozenset(telling))
        self._hints: Hints = {}
        # By rule; KEEP, which is -1, captures nothing.
        self._captures = [*map(bool, matcher.expressions.captures), False]
        self._blind = [*matcher.expressions.blind, True]
        self._names = series_names(matcher)
        self._series = {name: number for number, name in enumerate(self._names)}

    @property
    def lines(self) -> int:
        """Lines of all blocks so far."""
        return self._sifter.lines

    def feed(self, block: bytes | memoryview, original: bytes | memoryview | None = None) -> Sifted:
        """`block`: whole lines to judge, which follow those of the block before; `original`: the same as they are to be kept."""
        self._sifter.open_block(block, self.lines + 1)
        seen = BlockSightings()
        more = True
        while more:
            indexes, lines, repeated, more = self._sifter.sift()
            if not lines:
                continue
            rules, found = self._look_at(lines)
            ranks = list(map(self._rank_of, lines))
            for place, patterns in found.items() if self._collect_hits else ():
                index = indexes[place]
                seen.add(self._sightings.of(patterns), 1, index, index, lines[place], ranks[place] != NO_RANK)
            for place, rule in enumerate(rules):
                if self._captures[rule]:
                    self._measure(indexes[place], lines[place], rule, ranks, place)
            self._sifter.settle(indexes, rules, ranks)
            if repeated:
                self._learn(lines, rules, {shape_of(lines[place]): place for place in repeated}.values(), found)
        for note, count, first, last, line in self._sifter.noted():
            seen.add(self._sightings.noted(note), count, first, last, line)
        kept = self._sifter.close_block(block if original is None else original)
        return Sifted(kept, seen.hits(), seen.hit_lines, tuple(seen.runs))

    def _look_at(self, lines: list[bytes]) -> tuple[list[int], dict[int, list[int]]]:
        """The routine rule to which each line falls, or KEEP; and by place what is found of signal rules there, in order."""
        self._verdicts.open(lines)
        self._matcher.patterns.scan(b"\n".join(lines), self._verdicts.found)
        best, observed = self._verdicts.close()
        found: dict[int, list[int]] = {}
        for place, pattern in dict.fromkeys([(place, pattern) for place, _, pattern in sorted(observed)]):
            found.setdefault(place, []).append(pattern)
        return [self._by_precedence[place] for place in best], found

    def _rank_of(self, line: bytes) -> int:
        span = self._rank_prefix(line)
        return int(line[span[0] : span[1]]) if span else NO_RANK

    def _measure(self, index: int, line: bytes, rule: int, ranks: list[int], place: int) -> None:
        """Keep what a line that `rule` drops measures; a rank that the rule captures stands before that of a prefix."""
        spans = self._matcher.capture_spans(rule, line)
        if RANK in spans:
            ranks[place] = int(line[slice(*spans[RANK])])
        values = tuple([(series, line[start:end]) for series, start, end in self._measured(spans)])
        if values:
            second = clock_span(line)
            self._sifter.measure(index, ranks[place], line[: second[1]] if second else b"", values)

    def _measured(self, spans: Mapping[str, Span]) -> tuple[tuple[int, int, int], ...]:
        """(series, start, end) of the captured numbers that are measured."""
        series = self._series
        return tuple([(series[name], *span) for name, span in spans.items() if name in series])

    def _learn(
        self, lines: Sequence[bytes], rules: Sequence[int], places: Iterable[int], found_at: Mapping[int, list[int]]
    ) -> None:
        """Teach the sifter the shapes of the lines at `places`, each with the verdict on it."""
        unsure: list[tuple[bytes, int, list[int]]] = []
        for place in places:
            line = lines[place]
            found = found_at.get(place, [])
            if not self._collect_hits and ANY_DIGIT not in line and any(self._found_anyhow(found, with_unknown_digits(line))):
                self._sifter.learn(line, KEEP, (), self._rank_prefix(line), None, (), None)
            else:
                unsure.append((line, rules[place], found if self._collect_hits else []))
        known = [len(found) for _, _, found in unsure]
        judgements = judge(self._shapes, [line for line, _, _ in unsure], self._collect_hits, self._hints, known)
        for (line, rule, found), judgement in zip(unsure, judgements, strict=True):
            note = self._sightings.of(found).note if found else None
            if (
                judgement is None
                or not self._blind[rule]
                or (found and note is None)
                or not self._stands(line, rule, found, judgement)
            ):
                self._sifter.learn(line, ASK, (), None, None, (), None)
                continue
            spans = self._matcher.capture_spans(rule, line) if self._captures[rule] else {}
            values = self._measured(spans)
            second = clock_span(line) if values else None
            rank = spans.get(RANK) or self._rank_prefix(line)
            self._sifter.learn(line, rule, judgement.guards, rank, second, values, note)

    def _stands(self, line: bytes, rule: int, found: Sequence[int], judgement: Judgement) -> bool:
        """Whether all lines of the shape fall to `rule`, and show what is `found` of signal rules in this one."""
        kept_for_signal = any(self._standing[pattern] == SIGNAL for pattern in found)
        if not kept_for_signal and judgement.rule != (None if rule == KEEP else rule):
            return False
        return all(self._found_anyhow(found, with_known(line, judgement.guards)))

    def _found_anyhow(self, patterns: Iterable[int], text: bytes) -> Iterator[bool]:
        """For each of the patterns of signal rules whether it is found in `text` whatever its unknown digits are."""
        for pattern in patterns:
            certain = self._certain(pattern)
            yield certain is not None and bool(certain.search(text))

    def _certain(self, pattern: int) -> Any:
        """RE2 for lines with unknown digits, found only where `pattern` is found in any case; None where there is none."""
        if pattern not in self._certain_patterns:
            # Not at the top: most runs meet few such patterns.
            from rules.patterns import parse_pattern

            rule, clause, ordinal = self._matcher.references[pattern]
            source: str = getattr(self._matcher.rules[rule], clause.value)[ordinal]
            variant = parse_pattern(source).with_any_digit(certain=True)
            self._certain_patterns[pattern] = variant and re2.compile(variant.for_re2(), byte_options())
        return self._certain_patterns[pattern]

    def report(self, read_time: Callable[[str], float | None] | None, thinned: bool = True) -> CompressionReport:
        """What was dropped, and what is left of it. `read_time` gives the time that a text bears, in seconds since the epoch;
        without it the ranks are left out. `thinned`: whether all readings that are left are given, or the newest only."""
        kept_lines, kept_bytes, dropped, ranks = self._sifter.report()
        times: dict[str, float | None] = {}

        def time_of(text: str) -> float | None:
            if text not in times:
                times[text] = read_time(text) if read_time else None
            return times[text]

        return CompressionReport(
            kept_lines,
            kept_bytes,
            {rule.code: count for rule, count in zip(self._matcher.rules, dropped, strict=True) if count},
            {
                None if rank == NO_RANK else rank: self._trace(found, time_of, thinned)
                for rank, found in (ranks.items() if read_time else ())
            },
        )

    def _trace(self, found: RankReport, time_of: Callable[[str], float | None], thinned: bool) -> RankTrace:
        lines, last_number, last_line, series, points = found
        by_number = itemgetter(0)
        chosen = sorted(points, key=by_number) if thinned or not points else [max(points, key=by_number)]
        text = last_line.decode("utf-8", "replace")
        return RankTrace(
            lines,
            last_number,
            text,
            time_of(text),
            {self._names[number]: Series(count, last, least, most) for number, (count, last, least, most, _) in series.items()},
            tuple(
                Reading(number, time_of(stamp_text(time)), {self._names[series]: value for series, value in values.items()})
                for number, time, values in chosen
            ),
        )


def standing_of(rule: Rule, clause: Clause, place: int) -> int:
    if rule.role is RuleRole.ROUTINE:
        return place
    return CONDITION if clause is Clause.NONE else SIGNAL


def series_names(matcher: Matcher) -> tuple[str, ...]:
    """The quantities that routine rules measure: what they capture beyond the names that ranking reads, and the step."""
    names = {STEP: None}
    for rule, captured in zip(matcher.rules, matcher.expressions.names, strict=True):
        if rule.role is RuleRole.ROUTINE:
            names.update((name, None) for name in captured if name not in CAPTURES)
    return tuple(names)[:MAX_SERIES]


def clock_span(line: bytes) -> Span | None:
    # From colon to colon: a search for digits stops at nearly every byte.
    colon = line.find(b":", COLON_PLACE, CLOCK_BYTES)
    while colon >= 0:
        match = CLOCK.match(line, colon - COLON_PLACE, CLOCK_BYTES)
        if match:
            return match.span()
        colon = line.find(b":", colon + 1, CLOCK_BYTES)
    return None


def stamp_text(time: bytes) -> str:
    """The stamp alone, which lines of many ranks share, of the text up to its second."""
    return time[-STAMP_BYTES:].decode("latin-1")
