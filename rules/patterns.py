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

from rules.shapes import ANY_DIGIT

__all__ = ["MIN_LITERAL", "Pattern", "PatternError", "parse_pattern"]

# The shortest literal that a pattern must hold on to: below it the engines look at nearly every position.
MIN_LITERAL = 4
MAX_PATTERN_CHARS = 2_000
MAX_REPEAT = 1_000
MAX_ATOMS = 4_000
MAX_RANGE = 256
LONG_GAP = 8

NEWLINE = 10
DIGITS = frozenset(b"0123456789")
EVERY_BYTE = frozenset(range(256))
WORD = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
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


BOUNDARIES = (r"\b", r"\B")


class PatternError(ValueError):
    """A pattern that cannot be used; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Atom:
    """One byte out of a set."""

    bytes: frozenset[int]


@dataclass(frozen=True, slots=True)
class Anchor:
    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """A sequence; with a name, a capture."""

    nodes: tuple[Node, ...]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`most` None: without end."""

    nodes: tuple[Node, ...]
    least: int
    most: int | None
    lazy: bool


Node = Atom | Anchor | Group | Choice | Repeat


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


def widened(node: Node) -> Node:
    match node:
        case Atom(members):
            return Atom(members | DIGITS) if members & DIGITS else node
        case Group(nodes, name):
            return Group(tuple(map(widened, nodes)), name)
        case Choice(options):
            return Choice(tuple(tuple(map(widened, option)) for option in options))
        case Repeat(nodes, least, most, lazy):
            return Repeat(tuple(map(widened, nodes)), least, most, lazy)
        case Anchor():
            return node


def given_any_digit(node: Node, certain: bool) -> Node:
    match node:
        case Atom(members):
            accepts = members >= DIGITS if certain else bool(members & DIGITS)
            return Atom(members | {ANY_DIGIT} if accepts else members - {ANY_DIGIT})
        case Anchor(text):
            # ANY_DIGIT is no word byte to the engine: a boundary beside it is taken to be there.
            return Group(()) if text in BOUNDARIES else node
        case Group(nodes, name):
            return Group(tuple(given_any_digit(inner, certain) for inner in nodes), name)
        case Choice(options):
            return Choice(tuple(tuple(given_any_digit(inner, certain) for inner in option) for option in options))
        case Repeat(nodes, least, most, lazy):
            # What may only find too much compiles several times as fast with its long gaps left open.
            open_gap = not certain and most is not None and most >= LONG_GAP
            return Repeat(tuple(given_any_digit(inner, certain) for inner in nodes), least, None if open_gap else most, lazy)


def has_boundary(nodes: tuple[Node, ...]) -> bool:
    for node in nodes:
        match node:
            case Anchor(text) if text in BOUNDARIES:
                return True
            case Group(inside) | Repeat(inside) if has_boundary(inside):
                return True
            case Choice(options) if any(map(has_boundary, options)):
                return True
    return False


def trimmed(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """`nodes` without what a line need not contain at either end for the pattern to be found in it."""
    return trimmed_end(trimmed_end(nodes, last=True), last=False)


def trimmed_end(nodes: tuple[Node, ...], last: bool) -> tuple[Node, ...]:
    kept = list(nodes)
    place = -1 if last else 0
    while kept:
        match kept[place]:
            case Group(inside):
                shorter = trimmed_end(inside, last)
                if shorter:
                    kept[place] = Group(shorter)
                    break
                del kept[place]
            case Choice(options):
                choices = tuple(trimmed_end(option, last) for option in options)
                if all(choices):
                    kept[place] = Choice(choices)
                    break
                del kept[place]
            case Repeat(inside, least, _, lazy):
                if least == 0:
                    del kept[place]
                elif least == 1:
                    kept[place] = Group(inside)
                else:
                    kept[place] = Repeat(inside, least, least, lazy)
                    break
            case _:
                break
    return tuple(kept)


def ends_open(nodes: tuple[Node, ...]) -> bool:
    if not nodes:
        return False
    match nodes[-1]:
        case Repeat(inside, _, most, _):
            return most is None or ends_open(inside)
        case Group(inside):
            return ends_open(inside)
        case Choice(options):
            return any(map(ends_open, options))
    return False


def best_literal(nodes: tuple[Node, ...]) -> bytes:
    best = b""
    run = bytearray()
    for node in flattened(nodes):
        candidate = b""
        match node:
            case Atom(members) if len({bytes((byte,)).lower() for byte in members}) == 1:
                run += bytes((min(members),))
                continue
            case Anchor():
                continue
            case Group(inside):
                candidate = best_literal(inside)
            case Choice(options):
                candidate = min((best_literal(option) for option in options), key=len)
            case Repeat(inside, least, most) if least:
                repeated = fixed_bytes(inside)
                if repeated is None:
                    candidate = best_literal(inside)
                else:
                    run += repeated * least
                    if most == least:
                        continue
        best = max(best, bytes(run), candidate, key=len)
        run.clear()
    return max(best, bytes(run), key=len)


def fixed_bytes(nodes: tuple[Node, ...]) -> bytes | None:
    """What `nodes` match if that is always the same."""
    parts = bytearray()
    for node in flattened(nodes):
        if not isinstance(node, Atom) or len(node.bytes) != 1:
            return None
        parts += bytes(node.bytes)
    return bytes(parts)


def flattened(nodes: tuple[Node, ...]) -> list[Node]:
    flat: list[Node] = []
    for node in nodes:
        if isinstance(node, Group):
            flat.extend(flattened(node.nodes))
        else:
            flat.append(node)
    return flat


def names(nodes: tuple[Node, ...]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        match node:
            case Group(inside, name):
                found |= names(inside) | ({name} if name else set())
            case Choice(options):
                found.update(*map(names, options))
            case Repeat(inside):
                found |= names(inside)
    return found


def count_atoms(nodes: tuple[Node, ...]) -> int:
    total = 0
    for node in nodes:
        match node:
            case Group(inside):
                total += count_atoms(inside)
            case Choice(options):
                total += sum(map(count_atoms, options))
            case Repeat(inside, least, most):
                total += count_atoms(inside) * max(most or least, 1)
            case _:
                total += 1
    return total


def written(nodes: tuple[Node, ...], named: bool) -> str:
    return "".join(written_node(node, named) for node in nodes)


def written_node(node: Node, named: bool) -> str:
    match node:
        case Atom(members):
            return written_class(members)
        case Anchor(text):
            return text
        case Group(inside, name):
            return f"(?P<{name}>{written(inside, named)})" if named and name else f"(?:{written(inside, named)})"
        case Choice(options):
            return f"(?:{'|'.join(written(option, named) for option in options)})"
        case Repeat(inside, least, most, lazy):
            counts = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
            if counts is None:
                counts = f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"
            # Only captures see the difference between greedy and lazy.
            return f"(?:{written(inside, named)}){counts}{'?' if lazy and named else ''}"


def written_class(members: frozenset[int]) -> str:
    if members == EVERY_BYTE - {NEWLINE}:
        return "."
    if len(members) == 1:
        return written_byte(min(members))
    ranges: list[tuple[int, int]] = []
    for byte in sorted(members):
        if ranges and byte == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], byte)
        else:
            ranges.append((byte, byte))
    return f"[{''.join(written_byte(low) + ('' if low == high else '-' + written_byte(high)) for low, high in ranges)}]"


def written_byte(byte: int) -> str:
    return chr(byte) if byte in WORD or byte == 32 else f"\\x{byte:02x}"
