"""From how many nodes each task gets to which: nodes stay where they are, and whole replicas stand behind one switch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from recovery.planning.tasks import PlanError

__all__ = ["Move", "Placement", "Site", "place", "whole_replicas"]


@dataclass(frozen=True, slots=True)
class Site:
    """A node as placement sees it. `usable`: alive, in service, and not under maintenance; a spare is taken last."""

    name: str
    switch: str | None = None
    usable: bool = True
    is_spare: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """One node that changes hands; None stands for idle."""

    node: str
    giver: str | None
    taker: str | None


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes of each task, those that stay first and in their order; what moves."""

    nodes: Mapping[str, tuple[str, ...]]
    moves: tuple[Move, ...]


def place(
    targets: Mapping[str, int],
    current: Mapping[str, Sequence[str]],
    sites: Mapping[str, Site],
    replica_nodes: Mapping[str, int] | None = None,
) -> Placement:
    """Nodes for `targets`, with the fewest moves that there can be: a task that does not grow keeps only nodes of its own.

    Among the choices with equal moves, those that leave most replicas (of `replica_nodes` nodes, 1 where not given) whole behind
    one switch are taken, greedily. A node that is not usable is given up. Raises PlanError where the nodes do not suffice or a
    node belongs to two tasks.
    """
    owned = Counter(node for nodes in current.values() for node in nodes)
    doubled = sorted(node for node, count in owned.items() if count > 1)
    if doubled:
        raise PlanError(f"{', '.join(doubled)}: more than one task runs there, which planning by whole nodes cannot move")
    size_of = replica_nodes or {}
    kept = {task: _keep(current.get(task, ()), target, sites, size_of.get(task, 1)) for task, target in targets.items()}
    taken = {node for nodes in kept.values() for node in nodes}
    free = [site for name, site in sorted(sites.items()) if site.usable and name not in taken]
    placed = dict(kept)
    # The largest need first: it has the hardest time to find whole replicas.
    for task in sorted(targets, key=lambda name: (len(kept[name]) - targets[name], name)):
        missing = targets[task] - len(kept[task])
        if missing > len(free):
            raise PlanError(f"task {task} is to get {targets[task]} nodes and only {len(kept[task]) + len(free)} are there")
        added = _add(kept[task], missing, free, sites, size_of.get(task, 1))
        placed[task] = (*kept[task], *added)
        free = [site for site in free if site.name not in added]
    return Placement(placed, _moves(current, placed))


def whole_replicas(nodes: Collection[str], sites: Mapping[str, Site], size: int) -> int:
    """How many replicas of `size` nodes have all their nodes behind one switch."""
    return sum(count // size for count in _behind(nodes, sites).values())


def _behind(nodes: Collection[str], sites: Mapping[str, Site]) -> Counter[str]:
    """Nodes by switch. A node whose switch is not known stands alone."""
    return Counter(_switch(sites, name) for name in nodes)


def _switch(sites: Mapping[str, Site], name: str) -> str:
    site = sites.get(name)
    return site.switch if site is not None and site.switch is not None else f"node {name}"


def _keep(nodes: Sequence[str], target: int, sites: Mapping[str, Site], size: int) -> tuple[str, ...]:
    """As many of the task's own usable nodes as it may keep; what breaks no whole replica is given up first, of those a spare."""
    own = [name for name in nodes if name in sites and sites[name].usable]
    while len(own) > target:
        behind = _behind(own, sites)

        def loss(name: str, behind: Counter[str] = behind) -> tuple[bool, bool, int, int]:
            count = behind[_switch(sites, name)]
            return count % size == 0, not sites[name].is_spare, count, -own.index(name)

        own.remove(min(own, key=loss))
    return tuple(own)


def _add(kept: Sequence[str], missing: int, free: Sequence[Site], sites: Mapping[str, Site], size: int) -> tuple[str, ...]:
    """Nodes for a task that grows: those that complete a replica first, then whole new ones, then any; spares last."""
    added: list[str] = []
    rest = list(free)
    while len(added) < missing:
        behind = _behind([*kept, *added], sites)
        left = missing - len(added)
        room = Counter(_switch(sites, site.name) for site in rest if not site.is_spare)

        def worth(
            site: Site, behind: Counter[str] = behind, room: Counter[str] = room, left: int = left
        ) -> tuple[bool, bool, int, int]:
            switch = _switch(sites, site.name)
            lacking = size - behind[switch] % size
            completes = lacking <= min(left, room[switch] + site.is_spare)
            return not site.is_spare, completes, behind[switch] % size, -room[switch] if completes else room[switch]

        best = max(rest, key=worth)
        rest.remove(best)
        added.append(best.name)
    return tuple(added)


def _moves(current: Mapping[str, Sequence[str]], placed: Mapping[str, Sequence[str]]) -> tuple[Move, ...]:
    before = {node: task for task, nodes in current.items() for node in nodes}
    after = {node: task for task, nodes in placed.items() for node in nodes}
    return tuple(
        Move(node, before.get(node), after.get(node)) for node in sorted({*before, *after}) if before.get(node) != after.get(node)
    )
