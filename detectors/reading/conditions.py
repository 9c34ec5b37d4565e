"""What a rule asks of the lines around its match: `all` must stand near it, `none` must not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from detectors.reading.ledger import Match
from rules.matcher import Clause, Hit
from rules.pack import Rule
from rules.sightings import Conditions

__all__ = ["ConditionLog", "Presence"]

# Matches that wait for the end of their window, of one rule; beyond it the oldest is judged by what is known.
MAX_HELD = 4_096
# Runs of one condition and rank beyond which those that no match can reach any more are forgotten.
MAX_RUNS = 256
# Runs of one kind of line and rank that may wait to be looked at.
MAX_UNSORTED = 4_096

# Rule, clause, ordinal.
Condition = tuple[int, Clause, int]


@dataclass(frozen=True, slots=True)
class Presence:
    """Which condition patterns were seen anywhere."""

    seen: frozenset[Condition] = field(default_factory=frozenset)

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
        self._seen: set[Condition] = set()
        # First and last line of each run: places so close that a match between them has one in its window.
        self._runs: dict[Condition, dict[int | None, list[tuple[int, int]]]] = {}
        # Runs that nobody has asked for yet.
        self._unsorted: dict[tuple[Conditions, int | None], list[tuple[int, int]]] = {}
        self._longest = max((rule.window for rule in rules), default=0)
        self._read_to = 0
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
        condition = (hit.rule, hit.clause, hit.ordinal)
        self._seen.add(condition)
        if rank is not None:
            self._ranks.add(rank)
        self._place(condition, number, number, rank)

    def note_run(self, conditions: Conditions, first: int, last: int, rank: int | None) -> None:
        """Conditions were found in the lines `first` and `last`, and between them as often as makes them one run."""
        runs = self._unsorted.get((conditions, rank))
        if runs is None:
            runs = self._unsorted[conditions, rank] = []
            self._seen.update(conditions.patterns)
            if rank is not None:
                self._ranks.add(rank)
        runs.append((first, last))
        if len(runs) % MAX_UNSORTED == 0:
            if any(self._held.values()):
                self._sort()
            else:
                reachable = self._read_to - self._longest * max(1, len(self._ranks))
                runs[:] = [run for run in runs if run[1] >= reachable]

    def _sort(self) -> None:
        for (conditions, rank), runs in self._unsorted.items():
            for condition in conditions.patterns:
                for first, last in runs:
                    self._place(condition, first, last, rank)
            runs.clear()

    def _place(self, condition: Condition, first: int, last: int, rank: int | None) -> None:
        rule = self._rules[condition[0]]
        if not rule.window:
            return
        runs = self._runs.setdefault(condition, {}).setdefault(rank, [])
        if runs and runs[-1][0] <= first <= runs[-1][1] + rule.run_gap:
            runs[-1] = (runs[-1][0], max(last, runs[-1][1]))
            return
        if len(runs) >= MAX_RUNS:
            held = self._held.get(condition[0])
            reachable = min(held[0].number if held else first, self._read_to) - self._reach(rule)
            runs[:] = [run for run in runs if run[1] >= reachable]
        runs.append((first, last))

    def _reach(self, rule: Rule) -> int:
        return rule.window * max(1, len(self._ranks))

    def hold(self, match: Match) -> None:
        """Keep `match` until its window is read."""
        if match.rank is not None:
            self._ranks.add(match.rank)
        self._held.setdefault(match.rule, deque()).append(match)

    def settled(self, read_to: int | None) -> Iterator[Match]:
        """Matches whose window lies wholly before line `read_to` (None: the end) and whose conditions are met."""
        self._read_to = self._read_to if read_to is None else read_to
        if any(self._held.values()):
            self._sort()
        for index, waiting in self._held.items():
            reach = self._reach(self._rules[index])
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
        for rank, runs in self._runs.get((match.rule, clause, ordinal), {}).items():
            if rank is not None and match.rank is not None and rank != match.rank:
                continue
            if any(first <= match.number + reach and last >= match.number - reach for first, last in reversed(runs)):
                return True
        return False
