"""What is found of signal rules: in one line, in every line of a shape, and in a block of lines.

A hit is what a signal rule looks for; a condition only says something beside one. Hits are told line by line, conditions as runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from rules.matcher import Clause, Hit, Matcher
from rules.sifter import Note

__all__ = ["BlockSightings", "ConditionRun", "Conditions", "Sighting", "Sightings"]

# Patterns can stand together in this many ways before those that come later are looked at each time: more no honest log shows.
MAX_NOTES = 16_384

# Rule, clause, ordinal.
Reference = tuple[int, Clause, int]


@dataclass(frozen=True, slots=True, eq=False)
class Conditions:
    """Condition patterns that stand in one line together. One object for each such set."""

    patterns: tuple[Reference, ...]


class ConditionRun(NamedTuple):
    """Lines of one rank, from index `first` to `last`, in which these conditions stand: how many of them have no hits, and the
    first of them; no line where none names a rank."""

    conditions: Conditions
    lines: int
    first: int
    last: int
    line: bytes


@dataclass(frozen=True, slots=True)
class Sighting:
    """What stands in one line: the hits in order, and the conditions beside them.

    `note` is what a sifter keeps of lines in which just this stands; None where they have to be looked at each time.
    """

    telling: tuple[Reference, ...]
    conditions: Conditions | None
    note: Note | None


class Sightings:
    """One object for each way in which patterns stand together. `telling`: the patterns that make a hit."""

    def __init__(self, matcher: Matcher, telling: frozenset[int]) -> None:
        self._matcher = matcher
        self._telling = telling
        self._known: dict[tuple[int, ...], Sighting] = {}
        self._noted: list[Sighting] = []

    def of(self, found: Sequence[int]) -> Sighting:
        """`found`: patterns of signal rules in the order in which they stand in a line, at least one."""
        key = tuple(found)
        known = self._known.get(key)
        return self._new(key) if known is None else known

    def noted(self, number: int) -> Sighting:
        """The one whose note has this number."""
        return self._noted[number]

    def _new(self, found: tuple[int, ...]) -> Sighting:
        references = self._matcher.references
        telling = tuple([references[pattern] for pattern in found if pattern in self._telling])
        beside = tuple([references[pattern] for pattern in sorted(found) if pattern not in self._telling])
        conditions = Conditions(beside) if beside else None
        if len(self._noted) >= MAX_NOTES:
            return Sighting(telling, conditions, None)
        # What is a hit is wanted line by line.
        gap = 0 if telling else min(self._matcher.rules[rule].run_gap for rule, _, _ in beside)
        sighting = self._known[found] = Sighting(telling, conditions, (len(self._noted), gap))
        self._noted.append(sighting)
        return sighting


class BlockSightings:
    """The hits and the runs of conditions of one block, as they are added."""

    def __init__(self) -> None:
        self._hits: list[Hit] = []
        self.hit_lines: dict[int, bytes] = {}
        self.runs: list[ConditionRun] = []

    def add(self, sighting: Sighting, lines: int, first: int, last: int, line: bytes, names_rank: bool = True) -> None:
        """`lines` of one rank between the indexes `first` and `last`, of which `line` is the first, show `sighting`."""
        if sighting.telling:
            self._hits.extend([Hit(first, *reference) for reference in sighting.telling])
            self.hit_lines[first] = line
        if sighting.conditions is not None:
            told = line if names_rank else b""
            self.runs.append(ConditionRun(sighting.conditions, 0 if sighting.telling else lines, first, last, told))

    def hits(self) -> tuple[Hit, ...]:
        """In the order of the lines."""
        return tuple(sorted(self._hits, key=attrgetter("line")))
