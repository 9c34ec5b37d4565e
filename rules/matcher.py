"""Find the lines that any rule recognises: Hyperscan over blocks of lines, RE2 for captures on the matched line only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import hyperscan
import re2

from rules.pack import Rule

__all__ = ["MAX_CAPTURE_BYTES", "Clause", "Hit", "Matcher"]

# Captures look at this much of a line; longer ones are matched whole but captured from their beginning.
MAX_CAPTURE_BYTES = 16_384


class Clause(StrEnum):
    """Which list of its rule a pattern stands in."""

    ANY = "any"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Hit:
    """Pattern number `ordinal` of the rule's `clause` was found in the line with index `line` of the block (from 0)."""

    line: int
    rule: int
    clause: Clause
    ordinal: int


class Matcher:
    """Immutable once built; one per process (the binding holds the interpreter lock while it scans)."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._references: list[tuple[int, Clause, int]] = []
        patterns: list[bytes] = []
        for index, rule in enumerate(self.rules):
            for clause, group in ((Clause.ANY, rule.any), (Clause.ALL, rule.all), (Clause.NONE, rule.none)):
                for ordinal, pattern in enumerate(group):
                    self._references.append((index, clause, ordinal))
                    patterns.append(pattern.encode())
        self._database = hyperscan.Database()
        if patterns:
            self._database.compile(
                expressions=patterns, ids=list(range(len(patterns))), flags=[hyperscan.HS_FLAG_MULTILINE] * len(patterns)
            )

    def scan(self, block: bytes) -> Iterator[Hit]:
        """Each pattern at most once a line, in line order. `block` holds whole lines."""
        if not self._references:
            return
        found: set[tuple[int, int]] = set()
        newlines = [index for index, byte in enumerate(block) if byte == 10]

        def on_match(pattern: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.add((bisect_right(newlines, end - 1), pattern))

        self._database.scan(block, match_event_handler=on_match)
        for line, pattern in sorted(found):
            rule, clause, ordinal = self._references[pattern]
            yield Hit(line, rule, clause, ordinal)

    def captures(self, rule: int, text: str) -> dict[str, str]:
        """Named groups of the rule's capture patterns found in `text`; the first value of a name stands."""
        values: dict[str, str] = {}
        limited = text[:MAX_CAPTURE_BYTES]
        for pattern in self.rules[rule].captures:
            match = re2.search(pattern, limited)
            if match:
                for name, value in match.groupdict().items():
                    if value is not None:
                        values.setdefault(name, value)
        return values
