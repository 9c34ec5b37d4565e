"""The form of a pattern once it is read: bytes, anchors, groups, choices, repeats; what they imply, how engines write them."""

from __future__ import annotations

from dataclasses import dataclass

from rules.shapes import ANY_DIGIT

__all__ = [
    "BOUNDARIES",
    "DIGITS",
    "EVERY_BYTE",
    "NEWLINE",
    "WORD",
    "Anchor",
    "Atom",
    "Choice",
    "Group",
    "Node",
    "Repeat",
    "best_literal",
    "count_atoms",
    "ends_open",
    "given_any_digit",
    "has_boundary",
    "names",
    "trimmed",
    "widened",
    "written",
]

NEWLINE = 10
DIGITS = frozenset(b"0123456789")
EVERY_BYTE = frozenset(range(256))
WORD = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
BOUNDARIES = (r"\b", r"\B")
# A bounded repeat of at least this many is a gap.
LONG_GAP = 8


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
