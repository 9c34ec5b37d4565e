"""What the matches of one scan over some lines say of each line.

The contract and a plain Python form of it; the C form (rules/_sifter_verdicts.h) is called for each match without running Python.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol, cast

__all__ = ["CONDITION", "KEEP", "SIGNAL", "PythonVerdicts", "Verdicts", "new_verdicts"]

# The standing of a pattern: the place of its routine rule in the order of precedence, or one of these.
SIGNAL = -1
CONDITION = 1 << 29
# In place of a routine rule: the line is kept.
KEEP = -1
UNRECOGNISED = 1 << 30


class Verdicts(Protocol):
    """Call `open` with lines, scan them joined by newlines with `found` as the callback, then `close`."""

    def open(self, lines: list[bytes], /) -> None: ...

    def found(self, pattern: int, start: int, end: int, flags: int, context: object, /) -> None: ...

    def close(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        """For each line the place of the routine rule to which it falls, or KEEP; and (line, end, pattern) of every signal
        found, and of every condition where they count. Of a pattern's ends in one line, those after the first say nothing new
        and may be left out: a progress bar in one line has hundreds."""


class PythonVerdicts:
    """The plain form."""

    def __init__(self, standings: Sequence[int], routine_end: int, conditions: bool) -> None:
        self._standings = standings
        self._routine_end = routine_end
        self._conditions = conditions
        self._best: list[int] = []
        self._ends: list[int] = []
        self._observed: list[tuple[int, int, int]] = []
        self._newest: dict[int, tuple[int, int]] = {}

    def open(self, lines: list[bytes], /) -> None:
        self._best = [UNRECOGNISED] * len(lines)
        self._ends = list(accumulate((len(line) + 1 for line in lines), initial=-1))[1:]
        self._observed = []
        self._newest = {}

    def found(self, pattern: int, start: int, end: int, flags: int, context: object, /) -> None:
        place, standing = bisect_left(self._ends, end), self._standings[pattern]
        self._best[place] = min(self._best[place], standing)
        if standing == SIGNAL or (self._conditions and standing == CONDITION):
            where, first = self._newest.get(pattern, (-1, 0))
            if where != place or end < first:
                self._newest[pattern] = place, end
                self._observed.append((place, end, pattern))

    def close(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        best = [standing if 0 <= standing < self._routine_end else KEEP for standing in self._best]
        return best, self._observed


def new_verdicts(standings: list[int], routine_end: int, conditions: bool) -> Verdicts:
    """By pattern its standing; those of routine rules end before `routine_end`. `conditions`: whether those count."""
    try:
        from rules import _sifter  # type: ignore[attr-defined,unused-ignore]
    except ImportError:
        return PythonVerdicts(standings, routine_end, conditions)
    return cast(Verdicts, _sifter.Verdicts(standings, routine_end, conditions))
