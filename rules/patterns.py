"""The regular expressions of rules: read once, judged, and written out for each engine with one meaning.

Patterns are written in the common subset of Python's `re`, RE2 and Hyperscan and work on the bytes of one line. No written-out
atom can match a newline (`\\s`, `\\D`, `[^x]` lose it), which changes nothing for a single line and lets Hyperscan scan blocks.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rules.pattern_nodes import (
    DIGITS,
    EVERY_BYTE,
    NEWLINE,
    WORD,
    Anchor,
    Atom,
    Choice,
    Group,
    Node,
    Repeat,
    best_literal,
    count_atoms,
    ends_open,
    given_any_digit,
    has_boundary,
    names,
    trimmed,
    widened,
    written,
)

__all__ = ["MIN_LITERAL", "Pattern", "PatternError", "parse_pattern"]

# The shortest literal that a pattern must hold on to: below it the engines look at nearly every position.
MIN_LITERAL = 4
MAX_PATTERN_CHARS = 2_000
MAX_REPEAT = 1_000
MAX_ATOMS = 4_000
MAX_RANGE = 256

SPACE = frozenset(b" \t\n\r\f\v")
CATEGORIES = {
    "CATEGORY_DIGIT": DIGITS,
    "CATEGORY_NOT_DIGIT": EVERY_BYTE - DIGITS,
    "CATEGORY_SPACE": SPACE,
    "CATEGORY_NOT_SPACE": EVERY_BYTE - SPACE,
    "CATEGORY_WORD": WORD,
    "CATEGORY_NOT_WORD": EVERY_BYTE - WORD,
}
ANCHORS = {
    "AT_BEGINNING": "^",
    "AT_BEGINNING_STRING": "^",
    "AT_END": "$",
    "AT_END_STRING": "$",
    "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
}


class PatternError(ValueError):
    """A pattern that cannot be used; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that was read, with what can be known of it without running it."""

    source: str
    nodes: tuple[Node, ...]

    def for_hyperscan(self) -> bytes:
        """Finds the same lines with the fewest events: repeats at either end count only as often as they must."""
        return written(trimmed(self.nodes), named=False).encode("ascii")

    def for_re2(self) -> bytes:
        """The whole pattern with its named groups, for captures."""
        return written(self.nodes, named=True).encode("ascii")

    def digit_blind(self) -> Pattern:
        """The narrowest pattern that finds at least the same lines and cannot tell one digit from another."""
        return Pattern(self.source, tuple(widened(node) for node in self.nodes))

    @property
    def is_digit_blind(self) -> bool:
        return self.digit_blind().nodes == self.nodes

    def with_any_digit(self, certain: bool) -> Pattern | None:
        """The pattern for lines in which ANY_DIGIT stands for unknown digits.

        `certain`: found only where this pattern is found whatever those digits are; None where that cannot be written.
        Otherwise: found at least wherever this pattern is found for some choice of them.
        """
        if certain and has_boundary(self.nodes):
            return None
        return Pattern(self.source, tuple(given_any_digit(node, certain) for node in self.nodes))

    @property
    def ends_in_open_repeat(self) -> bool:
        return ends_open(self.nodes)

    @property
    def longest_literal(self) -> str:
        """The longest run of fixed letters (case aside) that every match contains."""
        return best_literal(self.nodes).decode("utf-8", "replace")

    @property
    def group_names(self) -> frozenset[str]:
        return frozenset(names(self.nodes))


def parse_pattern(source: str) -> Pattern:
    """Read `source`. Raises PatternError where it is malformed, too large, or asks for what one of the engines lacks."""
    if len(source) > MAX_PATTERN_CHARS:
        raise PatternError(f"longer than {MAX_PATTERN_CHARS} characters")
    # The parser of Python's own `re`: there is no public one, and a second grammar of ours would drift from it.
    parser: Any = importlib.import_module("re._parser")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = parser.parse(source, re.ASCII)
        group_names = {number: name for name, number in tree.state.groupdict.items()}
        nodes = tuple(read(tree, tree.state.flags, group_names))
    except PatternError:
        raise
    except (re.error, Warning, OverflowError, UnicodeError) as error:
        raise PatternError(f"not a pattern: {error}") from None
    except RecursionError:
        raise PatternError("nested too deeply") from None
    if count_atoms(nodes) > MAX_ATOMS:
        raise PatternError(f"repeats add up to more than {MAX_ATOMS} places")
    return Pattern(source, nodes)


def read(tree: Any, flags: int, group_names: dict[int, str]) -> list[Node]:
    if flags & (re.DOTALL | re.LOCALE):
        raise PatternError("the flags s and L are not allowed: a pattern looks at one line")
    nodes: list[Node] = []
    for operation, argument in tree:
        name = str(operation)
        if name == "LITERAL":
            nodes.append(character(argument, flags))
        elif name == "NOT_LITERAL":
            nodes.append(read_class([("NEGATE", None), ("LITERAL", argument)], flags))
        elif name == "ANY":
            nodes.append(atom(EVERY_BYTE))
        elif name == "IN":
            nodes.append(read_class(argument, flags))
        elif name == "AT":
            nodes.append(Anchor(ANCHORS[str(argument)]))
        elif name == "BRANCH":
            nodes.append(Choice(tuple(tuple(read(option, flags, group_names)) for option in argument[1])))
        elif name == "SUBPATTERN":
            number, added, removed, inner = argument
            inside = tuple(read(inner, (flags | added) & ~removed, group_names))
            nodes.append(Group(inside, group_names.get(number) if number is not None else None))
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inner = argument
            endless = str(most) == "MAXREPEAT"
            if least > MAX_REPEAT or (not endless and most > MAX_REPEAT):
                raise PatternError(f"repeats more than {MAX_REPEAT} times; RE2 takes no more")
            inside = tuple(read(inner, flags, group_names))
            nodes.append(Repeat(inside, int(least), None if endless else int(most), name == "MIN_REPEAT"))
        else:
            raise PatternError("look-around, back-references, conditions and possessive repeats are not in RE2 or Hyperscan")
    return nodes


def read_class(items: Sequence[Any], flags: int) -> Node:
    members: set[int] = set()
    beyond: set[int] = set()
    negated = False
    for operation, argument in items:
        name = str(operation)
        if name == "NEGATE":
            negated = True
        elif name == "LITERAL":
            (members if argument < 128 else beyond).add(argument)
        elif name == "RANGE":
            if argument[1] - argument[0] > MAX_RANGE:
                raise PatternError(f"a class spans more than {MAX_RANGE} characters; . or a negated class says the same")
            for member in range(argument[0], argument[1] + 1):
                (members if member < 128 else beyond).add(member)
        else:
            members.update(CATEGORIES[str(argument)])
    if not beyond:
        inside = folded(frozenset(members), flags)
        return atom(EVERY_BYTE - inside if negated else inside)
    if negated:
        raise PatternError("a negated class can hold ASCII characters only")
    plain = folded(frozenset(members), flags)
    options = [(character(member, flags),) for member in sorted(beyond)]
    return Choice(((atom(plain),), *options) if plain else tuple(options))


def folded(members: frozenset[int], flags: int) -> frozenset[int]:
    """`members` with the other case of each ASCII letter, where the pattern ignores case."""
    if not flags & re.IGNORECASE:
        return members
    return members | {byte ^ 0x20 for byte in members if byte < 128 and chr(byte).isalpha()}


def character(code: int, flags: int) -> Node:
    """One character: a byte, or the bytes of its UTF-8 form."""
    if code < 128:
        return atom(folded(frozenset((code,)), flags))
    return Group(tuple(Atom(frozenset((byte,))) for byte in chr(code).encode()))


def atom(members: frozenset[int]) -> Atom:
    inside = members - {NEWLINE}
    if not inside:
        raise PatternError("crosses a newline: a pattern looks at one line; use `all` with a `window` for what stands on others")
    return Atom(inside)
