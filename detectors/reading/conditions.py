"""What a rule asks of the lines around its match: `all` must stand near it, `none` must not."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from detectors.reading.ledger import Match
from rules.matcher import Clause, Hit
from rules.pack import Rule

__all__ = ["ConditionLog", "Presence"]

# Matches that wait for the end of their window, of one rule; beyond it the oldest is judged by what is known.
MAX_HELD = 4_096


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
        self._held: dict[int, deque[Match]] = {}
        self._ranks: set[int] = set()

    @property
    def present(self) -> Presence:
        return Presence(frozenset(self._seen))

    def needs(self, hit: Hit) -> bool:
        """Whether another place of this pattern can tell anything new."""
        return self._rules[hit.rule].window > 0 or (hit.rule, hit.clause, hit.ordinal) not in self._seen

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

    def hold(self, match: Match) -> None:
        """Keep `match` until its window is read."""
        if match.rank is not None:
            self._ranks.add(match.rank)
        self._held.setdefault(match.rule, deque()).append(match)

    def settled(self, read_to: int | None) -> Iterator[Match]:
        """Matches whose window lies wholly before line `read_to` (None: the end) and whose conditions are met."""
        stretch = max(1, len(self._ranks))
        for index, waiting in self._held.items():
            reach = self._rules[index].window * stretch
            while waiting and (read_to is None or waiting[0].number + reach < read_to or len(waiting) > MAX_HELD):
                match = waiting.popleft()
                if self._met(match, reach):
                    yield match

    def _met(self, match: Match, reach: int) -> bool:
        rule = self._rules[match.rule]
        return all(self._near(match, Clause.ALL, ordinal, reach) for ordinal in range(len(rule.all))) and not any(
            self._near(match, Clause.NONE, ordinal, reach) for ordinal in range(len(rule.none))
        )

    def _near(self, match: Match, clause: Clause, ordinal: int, reach: int) -> bool:
        for rank, places in self._places.get((match.rule, clause, ordinal), {}).items():
            if rank is not None and match.rank is not None and rank != match.rank:
                continue
            index = bisect_left(places, match.number - reach)
            if index < len(places) and places[index] <= match.number + reach:
                return True
        return False
