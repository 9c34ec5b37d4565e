"""What a rule asks of the lines around its match: `all` must stand near it, `none` must not."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rules.matcher import Clause, Hit
from rules.pack import Rule
from rules.signal import Line

__all__ = ["ConditionLog", "Held", "Presence"]


@dataclass(frozen=True, slots=True)
class Held:
    """A match whose window is not read to its end yet."""

    rule: int
    line: Line
    captures: dict[str, str]


@dataclass(frozen=True, slots=True)
class Presence:
    """Which condition patterns were seen anywhere: (rule, clause, ordinal)."""

    seen: frozenset[tuple[int, Clause, int]] = field(default_factory=frozenset)

    def __or__(self, other: Presence) -> Presence:
        return Presence(self.seen | other.seen)

    def satisfies(self, index: int, rule: Rule) -> bool:
        """Whether all of `all` and none of `none` were seen."""
        return all((index, Clause.ALL, ordinal) in self.seen for ordinal in range(len(rule.all))) and not any(
            (index, Clause.NONE, ordinal) in self.seen for ordinal in range(len(rule.none))
        )


class ConditionLog:
    """Where condition patterns stood in one source, and the matches that wait for them.

    A window counts the lines of a match's own rank: in a file where many ranks write in turn it is stretched by their
    number. Where the ranks of both lines are known they must be equal.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._seen: set[tuple[int, Clause, int]] = set()
        self._places: dict[tuple[int, Clause, int], dict[int | None, list[int]]] = {}
        self._held: dict[int, deque[Held]] = {}
        self._ranks: set[int] = set()

    @property
    def present(self) -> Presence:
        return Presence(frozenset(self._seen))

    def note(self, hit: Hit, number: int, rank: int | None) -> None:
        """A condition pattern was found in line `number`."""
        key = (hit.rule, hit.clause, hit.ordinal)
        self._seen.add(key)
        window = self._rules[hit.rule].window
        if window:
            places = self._places.setdefault(key, {}).setdefault(rank, [])
            # Places much closer than a window tell nothing new.
            if not places or number - places[-1] > window // 4:
                places.append(number)
        if rank is not None:
            self._ranks.add(rank)

    def hold(self, rule: int, line: Line, captures: dict[str, str]) -> None:
        if line.rank is not None:
            self._ranks.add(line.rank)
        self._held.setdefault(rule, deque()).append(Held(rule, line, captures))

    def settled(self, read_to: int | None) -> Iterator[Held]:
        """Matches whose window lies wholly before line `read_to` (None: the end) and whose conditions are met."""
        stretch = max(1, len(self._ranks))
        for index, waiting in self._held.items():
            reach = self._rules[index].window * stretch
            while waiting and (read_to is None or waiting[0].line.number + reach < read_to):
                held = waiting.popleft()
                if self._met(held, reach):
                    yield held

    def _met(self, held: Held, reach: int) -> bool:
        rule = self._rules[held.rule]
        return all(self._near(held, Clause.ALL, ordinal, reach) for ordinal in range(len(rule.all))) and not any(
            self._near(held, Clause.NONE, ordinal, reach) for ordinal in range(len(rule.none))
        )

    def _near(self, held: Held, clause: Clause, ordinal: int, reach: int) -> bool:
        for rank, places in self._places.get((held.rule, clause, ordinal), {}).items():
            if rank is not None and held.line.rank is not None and rank != held.line.rank:
                continue
            index = bisect_left(places, held.line.number - reach)
            if index < len(places) and places[index] <= held.line.number + reach:
                return True
        return False
