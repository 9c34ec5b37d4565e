"""Equal signals are counted; the first and the last are kept, and memory stays bounded however many lines match."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from rules.signal import Line

__all__ = ["MAX_SIGNALS_PER_RULE", "Entry", "Ledger", "Match", "Tally"]

# Different signals of one rule in one source beyond this many are counted with the last of them.
MAX_SIGNALS_PER_RULE = 256
# What is kept of one line's text.
MAX_KEPT_CHARS = 4_096

Key: TypeAlias = tuple[int, int | None, str | None, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Match:
    """One line that a rule recognised. `line` makes the full line, which most matches never need."""

    rule: int
    number: int
    rank: int | None
    node: str | None
    captures: Mapping[str, str]
    line: Callable[[], Line]


@dataclass(slots=True)
class Entry:
    """Equal signals of one source: the first, the last, how many."""

    rule: int
    captures: Mapping[str, str]
    first: Line
    count: int = 1
    last: Line | None = None


@dataclass(slots=True)
class Tally:
    """An entry that is still being counted. `newest` makes the line that was counted last, where it is not the first;
    `recurring` are the tallies of its ledger of which that is so, in the order in which it came to be."""

    entry: Entry
    recurring: list[Tally]
    newest: Callable[[], Line] | None = None

    def again(self, line: Callable[[], Line]) -> None:
        """Count one more."""
        self.entry.count += 1
        if self.newest is None:
            self.recurring.append(self)
        self.newest = line


class Ledger:
    """The signals of one source so far."""

    def __init__(self) -> None:
        self._tallies: dict[Key, Tally] = {}
        self._recurring: list[Tally] = []
        self._newest: dict[int, list[Key]] = {}

    def add(self, match: Match, details: Callable[[], Mapping[str, str]] | None = None) -> Tally:
        """Count `match`; `details` are further captures, asked for only where it is the first of its kind.

        Gives that under which it is counted, and under which every equal match may be.
        """
        key: Key = (match.rule, match.rank, match.node, tuple(sorted(match.captures.items())))
        if key not in self._tallies:
            known = self._newest.setdefault(match.rule, [])
            if len(known) < MAX_SIGNALS_PER_RULE:
                known.append(key)
                captures = {**details(), **match.captures} if details else match.captures
                tally = self._tallies[key] = Tally(Entry(match.rule, captures, kept(match.line())), self._recurring)
                return tally
            key = known[-1]
        self._tallies[key].again(match.line)
        return self._tallies[key]

    def entries(self) -> tuple[Entry, ...]:
        for tally in self._recurring:
            if tally.newest is not None:
                tally.entry.last = kept(tally.newest())
        return tuple(tally.entry for tally in self._tallies.values())


def kept(line: Line) -> Line:
    return line if len(line.text) <= MAX_KEPT_CHARS else replace(line, text=line.text[:MAX_KEPT_CHARS])
