"""The last completed step of each rank before each signal and at the end: what was running when something else was said."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from detectors.reading.ledger import Entry
from detectors.reading.lines import LineMaker
from detectors.reading.skew import StepPoint
from rules.matcher import Matcher

__all__ = ["StepLog"]

# Of the completed steps before a signal, this many are looked at for the last of each rank.
STEPS_BEFORE = 512
MAX_STEPS = 20_000
# More than these tell no more of the ranks' clocks.
MAX_POINTS = 4_096


class StepLog:
    """Steps come with nearly every line, so they are only noted, and read when a signal follows."""

    def __init__(self, matcher: Matcher, maker: LineMaker) -> None:
        self._matcher = matcher
        self._maker = maker
        self._waiting: deque[tuple[int, int, bytes]] = deque(maxlen=STEPS_BEFORE)
        self._entries: list[Entry] = []
        self._no_step = 0
        # When each rank completed which step, as far as the steps before signals tell.
        self.points: list[StepPoint] = []

    def note(self, rule: int, number: int, raw: bytes) -> None:
        """Line `number` tells of a completed step."""
        if number != self._no_step:
            self._waiting.append((rule, number, raw))

    def not_a_step(self, number: int) -> None:
        """Line `number` looks like a completed step, but another rule says what it is: the bar of a download, of weights read."""
        self._no_step = number
        if self._waiting and self._waiting[-1][1] == number:
            self._waiting.pop()

    def settle(self) -> None:
        """A signal follows, or the end: keep the last of each rank among those noted since the last call."""
        if not self._waiting:
            return
        last = {self._maker.rank(raw): (rule, number, raw) for rule, number, raw in self._waiting}
        if len(self.points) < MAX_POINTS:
            self.points.extend(self._points())
        self._waiting.clear()
        for rule, number, raw in last.values():
            line = self._maker.make(raw, number)
            self._entries.append(Entry(rule, self._matcher.captures(rule, line.text), line))
        if len(self._entries) > MAX_STEPS:
            del self._entries[MAX_STEPS // 2 : -MAX_STEPS // 2]

    def _points(self) -> Iterator[StepPoint]:
        for rule, number, raw in self._waiting:
            line = self._maker.make(raw, number)
            step = self._matcher.captures(rule, line.text).get("step", "")
            if line.rank is not None and line.time is not None and step.isascii() and step.isdigit() and len(step) < 18:
                yield StepPoint(line.rank, int(step), line.time)

    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries)
