"""Find the lines that any rule recognises: Hyperscan over blocks of lines, RE2 for captures on the matched line only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import hyperscan
import re2

from rules.pack import Mark, PackError, Rule

if TYPE_CHECKING:
    from rules.patterns import Pattern

__all__ = ["MAX_CAPTURE_BYTES", "Clause", "Expressions", "Hit", "Matcher", "PatternSet"]

# Captures look at this much of a line; longer ones are matched whole but captured from their beginning.
MAX_CAPTURE_BYTES = 16_384


FIRST_PLACE = re2._re2.RE2.Anchor.UNANCHORED


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


def references_of(rules: Sequence[Rule]) -> list[tuple[int, Clause, int]]:
    """Where each pattern of `rules` stands, in the order in which they are numbered."""
    return [
        (index, clause, ordinal)
        for index, rule in enumerate(rules)
        for clause, group in ((Clause.ANY, rule.any), (Clause.ALL, rule.all), (Clause.NONE, rule.none))
        for ordinal in range(len(group))
    ]


@dataclass(frozen=True, slots=True)
class Expressions:
    """The captures of a table of rules as RE2 takes them, by rule.

    `names` are those of the rule's captures; `blind`: whether they stand at the same places in lines that differ in digits only.
    """

    captures: tuple[tuple[bytes, ...], ...]
    names: tuple[tuple[str, ...], ...]
    blind: tuple[bool, ...]


def search_expressions(rules: Sequence[Rule]) -> tuple[bytes, ...]:
    """Every pattern as Hyperscan takes it, in the order of `references_of`. Raises PackError, naming the rule."""
    return tuple(
        pattern.for_hyperscan()
        for rule in rules
        for group in (rule.any, rule.all, rule.none)
        for pattern in patterns_of(rule, group)
    )


def capture_expressions(rules: Sequence[Rule]) -> Expressions:
    """Raises PackError, naming the rule, for a pattern that cannot be used."""
    captures = [patterns_of(rule, rule.captures) for rule in rules]
    return Expressions(
        tuple(tuple(pattern.for_re2() for pattern in group) for group in captures),
        tuple(tuple(sorted({name for pattern in group for name in pattern.group_names})) for group in captures),
        tuple(all(pattern.is_digit_blind for pattern in group) for group in captures),
    )


def patterns_of(rule: Rule, sources: Sequence[str]) -> list[Pattern]:
    # Not at the top: with compiled rules (rules/artefact.py) nobody reads patterns.
    from rules.patterns import PatternError, parse_pattern

    patterns = []
    for source in sources:
        try:
            patterns.append(parse_pattern(source))
        except PatternError as error:
            raise PackError(f"pack {rule.pack}, rule {rule.code}: pattern {source!r}: {error}") from None
    return patterns


class PatternSet:
    """Numbered patterns, found in blocks of whole lines. Raises PackError where Hyperscan cannot compile one."""

    def __init__(self, expressions: Sequence[bytes]) -> None:
        self.size = len(expressions)
        self._database: Any = None
        if not expressions:
            return
        self._database = hyperscan.Database()
        count = len(expressions)
        try:
            self._database.compile(
                expressions=list(expressions), ids=list(range(count)), flags=[hyperscan.HS_FLAG_MULTILINE] * count
            )
        except hyperscan.error as error:
            raise PackError(f"Hyperscan cannot compile the patterns together: {error}") from None

    @classmethod
    def load(cls, serialised: bytes, size: int) -> PatternSet:
        """`size` patterns from what `serialise` gave. Raises hyperscan.error."""
        patterns = cls(())
        patterns.size = size
        if size:
            patterns._database = hyperscan.loadb(serialised, hyperscan.HS_MODE_BLOCK)
            patterns._database.scratch = hyperscan.Scratch(patterns._database)
        return patterns

    def serialise(self) -> bytes:
        """The compiled database for a processor of this kind; empty where there is no pattern."""
        return bytes(hyperscan.dumpb(self._database)) if self._database is not None else b""

    def find(self, block: bytes) -> list[tuple[int, int]]:
        """(line index, pattern number), each once, in order. `block` holds whole lines and is under 4 GiB."""
        found: dict[tuple[int, int], None] = {}
        line = position = 0
        for end, pattern in self.events(block):
            if end != position:
                # No pattern crosses a newline, so those before a match's end are those before its line.
                line += block.count(b"\n", position, end)
                position = end
            found[line, pattern] = None
        return list(found)

    def events(self, block: bytes) -> list[tuple[int, int]]:
        """(end, pattern number) of every match, in order; a pattern may end several times in a line."""
        events: list[tuple[int, int]] = []
        append = events.append

        def on_match(pattern: int, _start: int, end: int, _flags: int, _context: object) -> None:
            append((end, pattern))

        self.scan(block, on_match)
        events.sort()
        return events

    def scan(self, block: bytes, found: Callable[[int, int, int, int, object], object]) -> None:
        """Calls `found` with (pattern number, 0, end, 0, None) for every match, roughly in order."""
        if self._database is not None:
            self._database.scan(block, match_event_handler=found)


def progress_patterns(rules: Sequence[Rule]) -> PatternSet:
    """Raises PackError."""
    return PatternSet(search_expressions([replace(rule, all=(), none=()) for rule in rules if rule.marks is Mark.PROGRESS]))


class Matcher:
    """Immutable once built; one per process (the binding holds the interpreter lock while it scans)."""

    def __init__(
        self,
        rules: Sequence[Rule],
        expressions: Expressions | None = None,
        patterns: PatternSet | None = None,
        progress: PatternSet | None = None,
    ) -> None:
        """Compiles the rules, unless an artefact brings `expressions`, `patterns` and `progress`. Raises PackError."""
        self.rules = tuple(rules)
        self._progress = progress
        self.patterns = patterns or PatternSet(search_expressions(self.rules))
        self.expressions = expressions or capture_expressions(self.rules)
        self.references = references_of(self.rules)
        self._captures: dict[int, tuple[Any, ...]] = {}

    def scan(self, block: bytes) -> Iterator[Hit]:
        """Each pattern at most once a line, in line order. `block` holds whole lines, about 1 MiB of them for speed."""
        for line, pattern in self.patterns.find(block):
            rule, clause, ordinal = self.references[pattern]
            yield Hit(line, rule, clause, ordinal)

    def progress(self) -> PatternSet:
        """The patterns of rules that mark completed steps, apart from all others."""
        self._progress = self._progress or progress_patterns(self.rules)
        return self._progress

    def captures(self, rule: int, text: str) -> dict[str, str]:
        """Named groups of the rule's capture patterns found in `text`; the first value of a name stands."""
        if not self.expressions.captures[rule]:
            return {}
        data = text[:MAX_CAPTURE_BYTES].encode("utf-8", "surrogateescape")
        return {name: data[start:end].decode("utf-8", "replace") for name, (start, end) in self.capture_spans(rule, data).items()}

    def capture_spans(self, rule: int, line: bytes) -> dict[str, tuple[int, int]]:
        """Where the rule's named groups stand in `line`, in bytes."""
        spans: dict[str, tuple[int, int]] = {}
        limited = line[:MAX_CAPTURE_BYTES]
        for find, names in self._capture_expressions(rule):
            groups = find(FIRST_PLACE, limited, 0, len(limited))
            for name, group in names:
                if groups[group][0] >= 0:
                    spans.setdefault(name, groups[group])
        return spans

    def _capture_expressions(self, rule: int) -> tuple[Any, ...]:
        compiled = self._captures.get(rule)
        if compiled is None:
            # The engine itself: the wrapper's match objects take longer than the matching.
            expressions = [re2._re2.RE2(pattern, byte_options()) for pattern in self.expressions.captures[rule]]
            compiled = tuple(
                (expression.Match, tuple((name.decode(), group) for name, group in expression.NamedCapturingGroups()))
                for expression in expressions
            )
            self._captures[rule] = compiled
        return compiled


def byte_options() -> Any:
    """RE2 over bytes, as Hyperscan sees them; complaints are raised, not printed."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    return options
