"""Renewals that say byte for byte what one before them did, but for the clock at their end: what that says is known."""

from __future__ import annotations

from dataclasses import dataclass

from service.node_reports import NodeReport

__all__ = ["Said", "SaidBefore"]

CLOCK = b'"clock":'
# Agents of several jobs may report the same node.
MOST_OF_A_NODE = 4
MOST_NODES = 20_000
# Of whole seconds since the epoch: no more than a lease may say.
MOST_DIGITS = 11


@dataclass(frozen=True, slots=True)
class Said:
    """What a renewal says beside its clock. `celsius`: of the hottest GPU, where one is named."""

    report: NodeReport
    celsius: float | None


class SaidBefore:
    """The last renewals of each node. Used on the event loop."""

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[bytes, Said]]] = {}

    def read(self, node: str, body: bytes) -> tuple[Said, float] | None:
        """What `body` says, and its clock; None where nothing like it was said lately."""
        for beginning, said in self._known.get(node, ()):
            if body.startswith(beginning):
                clock = plain(body[len(beginning) :])
                return (said, float(clock)) if clock else None
        return None

    def remember(self, node: str, body: bytes, said: Said) -> None:
        """`said` is what `body`, a document that was taken, says."""
        beginning, clock = parted(body)
        if clock:
            if len(self._known) >= MOST_NODES:
                self._known.clear()
            self._known[node] = [(beginning, said), *self._known.get(node, [])[: MOST_OF_A_NODE - 1]]


def parted(body: bytes) -> tuple[bytes, bytes]:
    """A document up to its clock, and the clock where it is a plain number, the last member of the outermost object."""
    beginning, name, end = body.rpartition(CLOCK)
    return beginning + name, plain(end)


def plain(end: bytes) -> bytes:
    """The number before the end of an object, b"" where that is not all."""
    clock = end[:-1].strip()
    whole, _, fraction = clock.partition(b".")
    is_plain = end[-1:] == b"}" and whole.isdigit() and len(whole) <= MOST_DIGITS and (not fraction or fraction.isdigit())
    return clock if is_plain else b""
