"""Read, match, and gather: from paths or bytes to the findings of one failure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from detectors.reading.conditions import ConditionLog, Presence
from detectors.reading.sources import LineReader, Source, find_sources, text_source
from detectors.reading.spans import SpanTracker
from detectors.reading.text import Origin, line_text, origin_of_path, origin_of_text, strip_escapes
from detectors.reading.timestamps import Stamps
from rules.diagnosis import Input
from rules.findings import Findings, RankSpan
from rules.matcher import Clause, Matcher
from rules.pack import Mark, Rule, RuleRole
from rules.signal import Line, Role, Signal, Trust
from rules.taxonomy import UNKNOWN

__all__ = ["scan_inputs", "scan_text"]

Clock = Callable[[], float]

# Different signals of one rule in one source beyond this many are counted with the last of them.
MAX_SIGNALS_PER_RULE = 256
LAST_LINES = 20
# Of the completed steps before a signal, this many are looked at for the last of each rank.
STEPS_BEFORE = 512
MAX_STEPS = 20_000

Key: TypeAlias = tuple[int, int | None, str | None, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class Entry:
    """Equal signals of one source: the first, the last, how many."""

    rule: int
    captures: dict[str, str]
    first: Line
    count: int = 1
    last: Line | None = None


@dataclass(frozen=True, slots=True)
class SourceFindings:
    """What one source gave. `deferred` hang on conditions over the whole input, to be judged when all of it is read."""

    source: Input
    entries: tuple[Entry, ...]
    deferred: tuple[Entry, ...]
    present: Presence
    spans: dict[int, RankSpan] = field(default_factory=dict)
    last_lines: tuple[Line, ...] = ()


class Ledger:
    """Counts equal signals; memory stays bounded however many lines match."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        self._by_rule: dict[int, list[Key]] = {}

    def add(self, rule: int, line: Line, captures: dict[str, str]) -> None:
        key: Key = (rule, line.rank, line.node, tuple(sorted(captures.items())))
        entry = self._entries.get(key)
        if entry is None:
            known = self._by_rule.setdefault(rule, [])
            if len(known) < MAX_SIGNALS_PER_RULE:
                known.append(key)
                self._entries[key] = Entry(rule, captures, line)
                return
            entry = self._entries[known[-1]]
        entry.count += 1
        entry.last = line

    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries.values())


class StepLog:
    """The last completed step of each rank before each signal and at the end: what was running when something else was said.

    Steps come with nearly every line, so they are only noted, and read when a signal follows.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, bytes]] = deque(maxlen=STEPS_BEFORE)
        self._entries: list[Entry] = []

    def note(self, rule: int, number: int, raw: bytes) -> None:
        self._waiting.append((rule, number, raw))

    def settle(self, line_of: Callable[[bytes, int], Line]) -> None:
        """Keep the last of each rank among those noted since the last call."""
        if not self._waiting:
            return
        last: dict[int | None, Entry] = {}
        for rule, number, raw in self._waiting:
            line = line_of(raw, number)
            last[line.rank] = Entry(rule, {}, line)
        self._waiting.clear()
        self._entries.extend(last.values())
        if len(self._entries) > MAX_STEPS:
            del self._entries[MAX_STEPS // 2 : -MAX_STEPS // 2]

    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries)


class SourceScan:
    """Reads one source from beginning to end."""

    def __init__(self, matcher: Matcher, stamps: Stamps) -> None:
        self._matcher = matcher
        self._stamps = stamps

    def run(self, source: Source) -> SourceFindings:
        """Raises UnreadableInput."""
        matcher, conditions = self._matcher, ConditionLog(self._matcher.rules)
        certain, deferred, steps = Ledger(), Ledger(), StepLog()
        path_origin = origin_of_path(source.path)

        def line_of(raw: bytes, number: int) -> Line:
            return self._line(raw, number, source.path, path_origin)

        spans = SpanTracker(source.path, path_origin, self._stamps)
        tail: deque[tuple[int, bytes]] = deque(maxlen=LAST_LINES)
        kept = 0
        with LineReader(source) as reader:
            for block in reader:
                data = strip_escapes(block.data)
                lines = data.split(b"\n")
                lines.pop()
                matched: set[int] = set()
                for hit in matcher.scan(data):
                    rule = matcher.rules[hit.rule]
                    if rule.role is RuleRole.ROUTINE and rule.marks is None:
                        continue
                    number = block.first + hit.line
                    if rule.marks is Mark.PROGRESS:
                        steps.note(hit.rule, number, lines[hit.line])
                        continue
                    steps.settle(line_of)
                    line = line_of(lines[hit.line], number)
                    if hit.clause is not Clause.ANY:
                        conditions.note(hit, number, line.rank)
                        continue
                    matched.add(hit.line)
                    captures = matcher.captures(hit.rule, line.text)
                    if not (rule.all or rule.none):
                        certain.add(hit.rule, line, captures)
                    elif rule.window == 0:
                        deferred.add(hit.rule, line, captures)
                    else:
                        conditions.hold(hit.rule, line, captures)
                kept += len(matched)
                for held in conditions.settled(block.first + block.lines):
                    certain.add(held.rule, held.line, held.captures)
                spans.observe(block.first, lines)
                from_end = max(0, len(lines) - LAST_LINES)
                tail.extend(enumerate(lines[from_end:], block.first + from_end))
            for held in conditions.settled(None):
                certain.add(held.rule, held.line, held.captures)
            read = Input(source.path, "log" if reader.lines else "empty", reader.lines, reader.bytes, kept)
        steps.settle(line_of)
        last_lines = tuple(line_of(raw, number) for number, raw in tail)
        return SourceFindings(
            read, (*certain.entries(), *steps.entries()), deferred.entries(), conditions.present, spans.spans(), last_lines
        )

    def _line(self, raw: bytes, number: int, path: str, path_origin: Origin) -> Line:
        text = line_text(raw)
        origin, _ = origin_of_text(text)
        return Line(
            text=text,
            number=number,
            path=path,
            rank=path_origin.rank if origin.rank is None else origin.rank,
            node=origin.node or path_origin.node,
            time=self._stamps.read(text),
            trust=Trust.JOB,
        )


def signal_of(entry: Entry, rules: Sequence[Rule]) -> Signal:
    rule = rules[entry.rule]
    return Signal(
        rule=rule.code,
        reason=rule.reason or UNKNOWN,
        role=Role.CONTEXT if rule.role is RuleRole.ROUTINE else Role(rule.role.value),
        line=entry.first,
        captures=entry.captures,
        count=entry.count,
        last=entry.last,
    )


def combine(parts: Sequence[SourceFindings], rules: Sequence[Rule]) -> Findings:
    """One failure's findings from what its sources gave; conditions over the whole input are judged here."""
    present = Presence()
    for part in parts:
        present |= part.present
    signals: list[Signal] = []
    spans: dict[int, RankSpan] = {}
    for part in parts:
        kept = [*part.entries, *(entry for entry in part.deferred if present.satisfies(entry.rule, rules[entry.rule]))]
        signals.extend(signal_of(entry, rules) for entry in sorted(kept, key=lambda entry: entry.first.number))
        for rank, span in part.spans.items():
            spans[rank] = joined(spans[rank], span) if rank in spans else span
    return Findings(
        signals=tuple(signals),
        spans=spans,
        inputs=tuple(part.source for part in parts),
        lines=sum(part.source.lines for part in parts),
        last_lines=tuple(line for part in parts for line in part.last_lines)[-LAST_LINES * 4 :],
    )


def joined(one: RankSpan, other: RankSpan) -> RankSpan:
    """Two sources of one rank as one span; the later end stands."""
    times = [time for time in (one.first_time, other.first_time) if time is not None]
    later = other if (other.last_time or 0.0) >= (one.last_time or 0.0) else one
    return RankSpan(
        one.rank, one.lines + other.lines, min(times, default=None), later.last_time, later.last_line, later.last_step
    )


def scan_sources(sources: Sequence[Source], matcher: Matcher, clock: Clock) -> Findings:
    """Raises UnreadableInput where a source cannot be read at all."""
    scan = SourceScan(matcher, Stamps(clock))
    return combine([scan.run(source) for source in sources], matcher.rules)


def scan_inputs(paths: Sequence[str], matcher: Matcher, clock: Clock) -> Findings:
    """The findings of what a run left under `paths` (files, directories, `-`). Raises UnreadableInput."""
    return scan_sources(find_sources(paths), matcher, clock)


def scan_text(content: bytes, matcher: Matcher, clock: Clock) -> Findings:
    """The findings of one text at hand, as the service and the evaluation have it."""
    return scan_sources([text_source(content)], matcher, clock)
