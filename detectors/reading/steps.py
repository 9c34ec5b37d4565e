"""The completed steps of a rank next to its signals, and its last one: what ran when something else was said."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from detectors.reading.ledger import Entry
from detectors.reading.lines import LineMaker
from detectors.reading.skew import StepPoint
from rules.matcher import Matcher
from rules.pack import Mark

__all__ = ["ProgressFinder", "StepLog"]

# Of the completed steps before a signal, this many are looked at for the last of each rank.
STEPS_BEFORE = 512
# Of those after it, this many are looked at for the first of its rank.
STEPS_AFTER = 256
MAX_STEPS = 20_000
# More than these tell no more of the ranks' clocks.
MAX_POINTS = 512


class ProgressFinder:
    """Finds completed steps alone: the routine rules that mark progress, apart from all others."""

    def __init__(self, matcher: Matcher) -> None:
        self._rules = [index for index, rule in enumerate(matcher.rules) if rule.marks is Mark.PROGRESS for _ in rule.any]
        self._patterns = matcher.progress()

    def find(self, lines: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """(rule, index of the line) of each completed step in `lines`."""
        if lines:
            for line, pattern in self._patterns.find(b"\n".join(lines) + b"\n"):
                yield self._rules[pattern], line


class StepLog:
    """Steps come with nearly every line, so they are only noted, and read when a signal follows."""

    def __init__(self, matcher: Matcher, maker: LineMaker) -> None:
        self._matcher = matcher
        self._maker = maker
        self._waiting: deque[tuple[int, int, bytes]] = deque(maxlen=STEPS_BEFORE)
        self._entries: list[Entry] = []
        # The newest step that was looked at for a rank; older ones need no second look.
        self._seen: dict[int | None, int] = {}
        self._no_step = 0
        # Ranks that gave a signal since their last kept step, and how many more steps are looked at for theirs.
        self._signalled: set[int | None] = set()
        self._patience = 0
        # When each rank completed which step, as far as the steps before signals tell.
        self.points: list[StepPoint] = []
        self._pointed = 0

    def note(self, rule: int, number: int, raw: bytes) -> None:
        """Line `number` tells of a completed step."""
        if number == self._no_step or (self._waiting and number <= self._waiting[-1][1]):
            return
        self._waiting.append((rule, number, raw))
        if self._patience:
            self._patience -= 1
            rank = self._maker.rank(raw)
            if rank in self._signalled:
                self._signalled.discard(rank)
                self._keep(rule, number, raw)

    def not_a_step(self, number: int) -> None:
        """Line `number` looks like a completed step, but another rule says what it is: the bar of a download, of weights read."""
        self._no_step = number
        if self._waiting and self._waiting[-1][1] == number:
            self._waiting.pop()
            if self._entries and self._entries[-1].first.number == number:
                self._entries.pop()

    def settle(self, rank: int | None) -> None:
        """A signal of `rank` follows: keep the last step of that rank."""
        self._signalled.add(rank)
        self._patience = STEPS_AFTER
        seen = self._seen.setdefault(rank, 0)
        if not self._waiting or self._waiting[-1][1] <= seen:
            return
        self._collect_points()
        self._seen[rank] = self._waiting[-1][1]
        for rule, number, raw in reversed(self._waiting):
            if number <= seen:
                return
            if self._maker.rank(raw) == rank:
                self._keep(rule, number, raw)
                return

    def _keep(self, rule: int, number: int, raw: bytes) -> None:
        line = self._maker.make(raw, number)
        self._entries.append(Entry(rule, self._matcher.captures(rule, line.text), line))
        if len(self._entries) > MAX_STEPS:
            del self._entries[MAX_STEPS // 2 : -MAX_STEPS // 2]

    def finish(self) -> None:
        """The end: keep the last step of every rank that gave a signal."""
        for rank in tuple(self._seen):
            self.settle(rank)

    def _collect_points(self) -> None:
        if len(self.points) >= MAX_POINTS or not self._waiting or self._waiting[-1][1] <= self._pointed:
            return
        for rule, number, raw in self._waiting:
            if number <= self._pointed:
                continue
            line = self._maker.make(raw, number)
            step = self._matcher.captures(rule, line.text).get("step", "")
            if line.rank is not None and line.time is not None and step.isascii() and step.isdigit() and len(step) < 18:
                self.points.append(StepPoint(line.rank, int(step), line.time))
        self._pointed = self._waiting[-1][1]

    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries)
