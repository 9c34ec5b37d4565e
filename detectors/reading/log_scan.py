"""One log from beginning to end: match its blocks, judge conditions, count signals, follow ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from detectors.reading.conditions import ConditionLog, Presence
from detectors.reading.ledger import Entry, Ledger, Match
from detectors.reading.lines import LineMaker
from detectors.reading.skew import StepPoint
from detectors.reading.sources import Block, LineReader
from detectors.reading.spans import SpanTracker
from detectors.reading.steps import StepLog
from detectors.reading.surroundings import Surroundings
from detectors.reading.text import line_text, origin_of_text, strip_escapes, torn_parts
from rules.findings import RankSpan
from rules.matcher import Clause, Hit, Matcher
from rules.pack import Mark, RuleRole
from rules.signal import Line

__all__ = ["LAST_LINES", "LogFindings", "LogScan"]

LAST_LINES = 20
# Up to here every line is looked at for ranks and routine marks; beyond, the end of each block stands for it.
DENSE_BYTES = 8 << 20
# A frame's source text counts by itself where no exception line of its rank follows within so many lines.
FRAME_PATIENCE = 500


@dataclass(frozen=True, slots=True)
class LogFindings:
    """What one log gave. `deferred` hang on conditions over the whole input, to be judged when all of it is read."""

    entries: tuple[Entry, ...] = ()
    deferred: tuple[Entry, ...] = ()
    present: Presence = field(default_factory=Presence)
    spans: dict[int, RankSpan] = field(default_factory=dict)
    last_lines: tuple[Line, ...] = ()
    kept: int = 0
    points: tuple[StepPoint, ...] = ()


class LogScan:
    """Scans one source. Not to be used twice."""

    def __init__(self, matcher: Matcher, maker: LineMaker) -> None:
        self._matcher = matcher
        self._maker = maker
        self._conditions = ConditionLog(matcher.rules)
        self._certain, self._deferred = Ledger(), Ledger()
        self._around = Surroundings()
        self._spans = SpanTracker(maker)
        self._steps = StepLog(matcher, maker)
        self._frames: dict[int | None, deque[Match]] = {}
        self._tail: deque[tuple[int, bytes]] = deque(maxlen=LAST_LINES)
        self._kept = 0

    def run(self, reader: LineReader) -> LogFindings:
        """Read it all."""
        for block in reader:
            self._block(block, reader.bytes <= DENSE_BYTES)
        self._settle(None)
        self._steps.finish()
        last_lines = tuple(self._maker.make(raw, number) for number, raw in self._tail)
        return LogFindings(
            (*self._certain.entries(), *self._steps.entries()),
            self._deferred.entries(),
            self._conditions.present,
            self._spans.spans(),
            last_lines,
            self._kept,
            tuple(self._steps.points),
        )

    def _block(self, block: Block, dense: bool) -> None:
        data = strip_escapes(block.data)
        hits = list(self._matcher.scan(data))
        if hits:
            lines = data.split(b"\n")
            lines.pop()
            self._around.move(block.first, lines)
            matched = set()
            for hit in hits:
                raw = lines[hit.line]
                if self._matcher.rules[hit.rule].role is not RuleRole.ROUTINE:
                    matched.add(hit.line)
                self._hit(hit, raw, block.first + hit.line)
            self._kept += len(matched)
        self._settle(block.first + block.lines)
        self._spans.observe(block.first, data, block.lines, dense)
        self._remember_end(block, data)

    def _hit(self, hit: Hit, raw: bytes, number: int) -> None:
        rule = self._matcher.rules[hit.rule]
        if rule.marks is Mark.PROGRESS:
            self._steps.note(hit.rule, number, raw)
            return
        if rule.role is RuleRole.ROUTINE and rule.marks is None:
            return
        if rule.marks in (Mark.LOADING, Mark.PREPARATION):
            self._steps.not_a_step(number)
        self._steps.settle(self._maker.rank(raw))
        if hit.clause is not Clause.ANY:
            self._conditions.note(hit, number, self._maker.rank(raw))
            return
        text = self._matched_part(hit, line_text(raw))
        line = self._maker.make(raw, number, text)
        rest = origin_of_text(line.text)[1]
        match = Match(hit.rule, number, line.rank, line.node, self._matcher.captures(hit.rule, line.text), lambda: line)
        if self._around.is_frame(self._maker, number, rest):
            self._frames.setdefault(line.rank, deque()).append(match)
            return
        if rule.role in (RuleRole.ROOT, RuleRole.CASCADE):
            self._frames.pop(line.rank, None)
        self._add(match, rest)

    def _add(self, match: Match, rest: str | None = None) -> None:
        rule = self._matcher.rules[match.rule]
        if (rule.all or rule.none) and rule.window:
            self._conditions.hold(match)
            return
        ledger = self._deferred if rule.all or rule.none else self._certain
        if rest is None:
            ledger.add(match)
        else:
            ledger.add(match, lambda: self._around.details(self._maker, match.number, rest))

    def _matched_part(self, hit: Hit, text: str) -> str:
        """Of a line that two ranks tore, the part in which the rule is found."""
        parts = torn_parts(text)
        if len(parts) == 1:
            return text
        for part in parts:
            found = self._matcher.scan(part.encode("utf-8", "replace") + b"\n")
            if any((other.rule, other.clause, other.ordinal) == (hit.rule, hit.clause, hit.ordinal) for other in found):
                return part
        return text

    def _settle(self, read_to: int | None) -> None:
        for match in self._unanswered_frames(read_to):
            self._add(match)
        for match in self._conditions.settled(read_to):
            self._certain.add(match)

    def _unanswered_frames(self, read_to: int | None) -> Iterator[Match]:
        for waiting in self._frames.values():
            while waiting and (read_to is None or waiting[0].number + FRAME_PATIENCE < read_to):
                yield waiting.popleft()

    def _remember_end(self, block: Block, data: bytes) -> None:
        start = len(data) - 1
        for _ in range(LAST_LINES):
            start = data.rfind(b"\n", 0, start)
            if start < 0:
                break
        last = data[start + 1 :].split(b"\n")
        last.pop()
        self._tail.extend(enumerate(last, block.first + block.lines - len(last)))
