"""One log from beginning to end: match its blocks, judge conditions, count signals, follow ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from detectors.reading.conditions import ConditionLog, Presence
from detectors.reading.familiar import FamiliarShapes
from detectors.reading.ledger import Entry, Ledger, Match, Tally
from detectors.reading.lines import LineMaker
from detectors.reading.losses import LossTail
from detectors.reading.skew import StepPoint
from detectors.reading.sources import LineReader
from detectors.reading.spans import SpanTracker
from detectors.reading.steps import ProgressFinder, StepLog
from detectors.reading.surroundings import SOURCE_INDENT, Surroundings, is_broadcast
from detectors.reading.text import is_traced_command, rank_span, strip_escapes_of_view, torn_parts
from rules.compression import Compressor
from rules.findings import RankSpan
from rules.matcher import Clause, Hit, Matcher
from rules.pack import Mark, Rule, RuleRole
from rules.shapes import ShapePatterns
from rules.sightings import ConditionRun
from rules.signal import Line, Signal

__all__ = ["LAST_LINES", "LogFindings", "LogScan"]

LAST_LINES = 20
# They are looked for in so much of a block's end first.
TAIL_BYTES = 1 << 14
# Of a large log, how many lines of each rank around a failure are looked at for its completed steps, and of all at most.
STEP_LINES_OF_RANK, STEP_LINES = 3, 512
# Up to here every line is looked at for ranks and routine marks; beyond, the end of each block stands for it.
DENSE_BYTES = 1 << 20
# A frame's source text counts by itself where no exception line of its rank follows within so many lines.
FRAME_PATIENCE = 500


@dataclass(frozen=True, slots=True)
class LogFindings:
    """What one log gave. `deferred` hang on conditions over the whole input, to be judged when all of it is read; `measured`
    are not lines that a rule knows, but what the numbers in several show together."""

    entries: tuple[Entry, ...] = ()
    deferred: tuple[Entry, ...] = ()
    present: Presence = field(default_factory=Presence)
    spans: dict[int, RankSpan] = field(default_factory=dict)
    last_lines: tuple[Line, ...] = ()
    kept: int = 0
    points: tuple[StepPoint, ...] = ()
    lines: int = 0
    measured: tuple[Signal, ...] = ()


class LogScan:
    """Scans one source. Not to be used twice.

    With `shapes`, lines are first sifted by their shapes, which makes large logs fast and shows each rank to its end: beyond
    DENSE_BYTES only what the sifter does not know is matched, and completed steps are looked for only before signals.
    """

    def __init__(self, matcher: Matcher, maker: LineMaker, shapes: ShapePatterns | None = None) -> None:
        self._matcher = matcher
        self._maker = maker
        self._compressor = Compressor(matcher, shapes, rank_span) if shapes is not None else None
        self._progress: ProgressFinder | None = None
        self._conditions = ConditionLog(matcher.rules)
        self._certain, self._deferred = Ledger(), Ledger()
        self._around = Surroundings()
        self._familiar = FamiliarShapes(matcher, maker)
        self._spans = SpanTracker(maker)
        self._steps = StepLog(matcher, maker)
        self._frames: dict[int | None, deque[Match]] = {}
        self._before: bytes | memoryview = b""
        self._losses = LossTail(maker)
        self._tail: deque[tuple[int, bytes]] = deque(maxlen=LAST_LINES)
        self._kept = 0
        self._lines = 0

    def run(self, reader: LineReader) -> LogFindings:
        """Read it all."""
        for view in reader.views():
            self._block(view, reader.bytes <= DENSE_BYTES)
        self._settle(None)
        read_to = self._lines + 1
        self._around.move(read_to, b"", self._before)
        self._look_for_steps(read_to - self._step_lines, read_to)
        self._steps.finish()
        spike = self._losses.spike()
        report = self._compressor.report(self._maker.time, thinned=False) if self._compressor is not None else None
        return LogFindings(
            (*self._certain.entries(), *self._steps.entries()),
            self._deferred.entries(),
            self._conditions.present,
            self._spans.spans(report),
            tuple(self._maker.make(raw, number) for number, raw in self._tail),
            self._kept,
            tuple(self._steps.points),
            self._lines,
            (spike,) if spike is not None else (),
        )

    def _block(self, view: memoryview, dense: bool) -> None:
        data = strip_escapes_of_view(view)
        first = self._lines + 1
        sifted = self._compressor.feed(data) if self._compressor is not None else None
        if sifted is None or dense:
            data = bytes(data)
            lines = data.split(b"\n")
            self._lines += len(lines) - 1
            self._take(list(self._matcher.scan(data)), first, data, lines.__getitem__)
            self._spans.observe(first, data, len(lines) - 1, dense)
        else:
            # The sifter has counted already, and most of a large log is never copied.
            self._lines = self._compressor.lines if self._compressor is not None else self._lines
            self._progress = self._progress or ProgressFinder(self._matcher)
            self._note(sifted.conditions, first)
            if sifted.hits:
                self._take(sifted.hits, first, data, sifted.hit_lines.__getitem__)
        self._settle(self._lines + 1)
        self._losses.remember(data, self._lines + 1, dense)
        self._remember_end(data)

    def _note(self, runs: Sequence[ConditionRun], number: int) -> None:
        """Conditions in the block whose first line has this number."""
        for run in runs:
            self._kept += run.lines
            rank = self._maker.rank(run.line)
            self._conditions.note_run(run.conditions, number + run.first, number + run.last, rank)

    def _take(self, hits: Sequence[Hit], first: int, data: bytes | memoryview, raw_of: Callable[[int], bytes]) -> None:
        """`data`: the block whose first line has number `first`; `raw_of` gives the line of a hit by its index in it."""
        self._around.move(first, data, self._before)
        rules = self._matcher.rules
        self._kept += len({hit.line for hit in hits if rules[hit.rule].role is not RuleRole.ROUTINE})
        signs: list[int] = []
        if self._progress is not None:
            failing = (RuleRole.ROOT, RuleRole.CASCADE)
            signs = [hit.line for hit in hits if hit.clause is Clause.ANY and rules[hit.rule].role in failing]
        # Looking around the first and the last sign of a failure is enough to know what was running, and bounded.
        looked_at = {signs[0], signs[-1]} if signs else set()
        done = -1
        for hit in hits:
            if hit.clause is not Clause.ANY and not self._conditions.needs(hit):
                continue
            number = first + hit.line
            if hit.line in looked_at and hit.line != done:
                self._look_for_steps(number - self._step_lines, number)
                done = hit.line
            self._hit(hit, raw_of(hit.line), number)
        if signs:
            after = first + done + 1
            self._look_for_steps(after, after + self._step_lines)

    @property
    def _step_lines(self) -> int:
        return min(STEP_LINES, STEP_LINES_OF_RANK * (self._spans.ranks + 4))

    def _look_for_steps(self, start: int, end: int) -> None:
        """Note the completed steps in the lines from number `start` up to and without `end`."""
        if self._progress is not None:
            first, lines = self._around.lines(start, end)
            for rule, index in self._progress.find(lines):
                self._steps.note(rule, first + index, lines[index])

    def _hit(self, hit: Hit, raw: bytes, number: int) -> None:
        rule = self._matcher.rules[hit.rule]
        if rule.marks is Mark.PROGRESS:
            self._steps.note(hit.rule, number, raw)
            return
        if rule.role is RuleRole.ROUTINE and rule.marks is None:
            return
        if hit.clause is not Clause.ANY:
            self._conditions.note(hit, number, self._maker.rank(raw))
            return
        if rule.marks in (Mark.LOADING, Mark.PREPARATION):
            self._steps.not_a_step(number)
        self._steps.settle(self._maker.rank(raw))
        known = self._familiar.read(hit.rule, raw)
        if known is not None:
            self._cause(rule, known.rank)
            line = partial(self._maker.make, raw, number)
            if known.tally is not None:
                known.tally.again(line)
            else:
                known.tally = self._add(Match(hit.rule, number, known.rank, known.node, known.captures, line), raw)
            return
        text = self._matched_part(hit, self._maker.text(raw))
        rank, node, rest = self._maker.origin(text, raw)
        if is_traced_command(rest):
            return
        captures = self._matcher.captures(hit.rule, text)
        broadcast = is_broadcast(rest)
        if broadcast and (host := self._around.broadcaster(number)) is not None:
            captures = {"node": host, **captures}
        match = Match(hit.rule, number, rank, node, captures, lambda: self._maker.make(raw, number, text))
        if self._around.is_frame(self._maker, number, rest):
            self._frames.setdefault(rank, deque()).append(match)
            return
        # What hangs on the line above it is looked at each time.
        hangs = rest.startswith(SOURCE_INDENT) or broadcast
        if not self._maker.is_journal and not hangs and len(torn_parts(text)) == 1:
            self._familiar.learn(hit.rule, raw)
        self._cause(rule, rank)
        self._add(match, raw)

    def _cause(self, rule: Rule, rank: int | None) -> None:
        """A line names what failed: the frames of its rank before it are no signals of their own."""
        if rule.role in (RuleRole.ROOT, RuleRole.CASCADE):
            self._frames.pop(rank, None)

    def _add(self, match: Match, raw: bytes | None = None) -> Tally | None:
        """Count `match`; where, unless it waits for its window."""
        rule = self._matcher.rules[match.rule]
        if (rule.all or rule.none) and rule.window:
            self._conditions.hold(match)
            return None
        ledger = self._deferred if rule.all or rule.none else self._certain
        # Looking upwards costs as much as many matches: only where a record can stand there.
        telling = rule.role in (RuleRole.ROOT, RuleRole.CASCADE) or rule.marks is Mark.EXIT
        return ledger.add(match, None if raw is None or not telling else lambda: self._details(match, raw))

    def _details(self, match: Match, raw: bytes) -> Mapping[str, str]:
        rest = self._maker.origin(match.line().text, raw)[2]
        return self._around.details(self._maker, match.number, rest)

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

    def _remember_end(self, data: bytes | memoryview) -> None:
        self._before = data
        end = bytes(data[-TAIL_BYTES:])
        if len(data) > TAIL_BYTES and end.count(b"\n") <= LAST_LINES:
            end = bytes(data)
        last = end.rsplit(b"\n", LAST_LINES + 1)[-LAST_LINES - 1 : -1]
        self._tail.extend(enumerate(last, self._lines + 1 - len(last)))
