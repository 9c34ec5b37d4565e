"""Who carries a job's ranks in a generation: nodes in order, each with its share of the ranks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Formation", "Member", "NodeBounds", "Place", "choose_members", "formation_of", "parse_bounds"]


@dataclass(frozen=True, slots=True)
class Member:
    """A node that offers `ranks` processes, and where its agent listens. `order`: where it wants to stand, None for anywhere."""

    node: str
    ranks: int
    host: str
    port: int = 0
    order: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A node's part of a formation: its ranks are `first` .. `first` + `ranks` - 1 of `world`."""

    first: int
    ranks: int
    world: int
    group_rank: int = 0
    groups: int = 1


@dataclass(frozen=True, slots=True)
class Formation:
    """The members of one generation in rank order. The first one leads: the store runs there.

    `lost`: members that carry nothing any more since the others went on in their processes, under the ranks that they had.
    """

    generation: int
    members: tuple[Member, ...]
    lost: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(member.node for member in self.members if member.node not in self.lost)

    @property
    def leader(self) -> Member:
        return next(member for member in self.members if member.node not in self.lost)

    def shrunk(self, generation: int, ranks: Collection[int], leader: str) -> Formation:
        """The one in which these ranks go on. `leader`: who leads it, with or without ranks of its own."""
        kept = {leader, *(self.node_of(rank) for rank in ranks)}
        lost = tuple(member.node for member in self.members if member.node not in kept)
        return replace(self, generation=generation, lost=lost)

    def hindrance(self, named: Collection[str], off: Collection[str]) -> str | None:
        """Why `named` may not go on under another leader, None where they may. `off`: other nodes on which nothing runs any more.

        More than half of the nodes with the leader among them go on by themselves (`NodeBounds.allow`): such a half that is only
        out of reach may do so at this moment, under the very generation that these would take.
        """
        left = [node for node in self.nodes if node not in named and node not in off]
        if self.leader.node not in left or 2 * len(left) <= len(self.nodes):
            return None
        return f"{', '.join(left)} may go on without {', '.join(named)}, and nobody has seen them end"

    @property
    def world(self) -> int:
        return sum(member.ranks for member in self.members)

    def place(self, node: str) -> Place:
        """Lost or not. Raises KeyError where `node` is no member."""
        first = 0
        for group, member in enumerate(self.members):
            if member.node == node:
                return Place(first, member.ranks, self.world, group, len(self.members))
            first += member.ranks
        raise KeyError(node)

    def ranks_of(self, node: str) -> range:
        """Empty where `node` is no member, or lost."""
        if node not in self.nodes:
            return range(0)
        place = self.place(node)
        return range(place.first, place.first + place.ranks)

    def node_of(self, rank: int) -> str:
        """Where it runs or ran. Raises KeyError where there is no such rank."""
        for member in self.members:
            place = self.place(member.node)
            if place.first <= rank < place.first + place.ranks:
                return member.node
        raise KeyError(rank)


def formation_of(document: Mapping[str, Any]) -> Formation:
    """One that was written with `dataclasses.asdict`. Raises KeyError, TypeError where it is none."""
    members = tuple(Member(**member) for member in document["members"])
    return Formation(int(document["generation"]), members, tuple(document.get("lost", ())))


@dataclass(frozen=True, slots=True)
class NodeBounds:
    """How many nodes a job takes: it starts with `most`, and with at least `least` when the others do not come."""

    least: int = 1
    most: int = 1

    def allow(self, left: int, before: int) -> bool:
        """Whether `left` nodes of `before` may go on by themselves: never two halves of a job at once."""
        return left >= self.least and 2 * left > before


def parse_bounds(text: str) -> NodeBounds:
    """`2` or `1:2`, as torchrun's --nnodes. Raises ValueError."""
    least, _, most = text.partition(":")
    bounds = NodeBounds(int(least), int(most or least))
    if not 1 <= bounds.least <= bounds.most:
        raise ValueError(text)
    return bounds


def choose_members(
    present: Mapping[str, Member],
    leader: str,
    bounds: NodeBounds,
    *,
    wanted: Sequence[str] = (),
    previous: Sequence[str] = (),
    barred: Collection[str] = (),
    waited: bool = False,
) -> tuple[Member, ...] | None:
    """The members of the next generation, the leader first; None while somebody has to be waited for.

    `wanted`: what a command asks for, all of it. Otherwise the nodes of the generation before, or at the first start as many as
    the bounds allow. `waited`: as long as is reasonable; then those that are there are enough, if they are not below the bounds
    and, so that two halves of a job never go on at once, more than half of the nodes before. `barred`: nodes out of service.
    """
    if wanted:
        return tuple(present[node] for node in wanted) if all(node in present for node in wanted) else None
    offered = [member for node, member in present.items() if node not in barred]
    known = {node: at for at, node in enumerate(previous)}
    offered.sort(key=lambda member: standing(member, leader, known))
    chosen = offered[: bounds.most]
    expected = [node for node in previous if node not in barred] or None
    complete = len(chosen) == bounds.most if expected is None else all(node in present for node in expected)
    if complete:
        return tuple(chosen)
    if not waited or leader not in {member.node for member in chosen} or not bounds.allow(len(chosen), len(previous)):
        return None
    return tuple(chosen)


def standing(member: Member, leader: str, known: Mapping[str, int]) -> tuple[bool, int, int, str]:
    """The leader, then the nodes of before as they stood, then by the order they want and their names."""
    last = 1 << 31
    return member.node != leader, known.get(member.node, last), last if member.order is None else member.order, member.node
