"""The safety envelope: what stands between a decision and anything that takes a node away from everybody. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

__all__ = ["BreakerLimits", "Fleet", "Maintenance", "NodeFacts", "Removal", "Verdict", "free_spares", "review"]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node. `rack`: what fails together (a rack, a switch); `cordoned_by`: who took it out, None where it is in service."""

    name: str
    rack: str | None = None
    cordoned_by: str | None = None
    is_spare: bool = False
    is_alive: bool = True


@dataclass(frozen=True, slots=True)
class Removal:
    """A node that Pitstop took out at `at`. `returned_at`: when it came back. `cancelled_by`: who put it back by hand."""

    node: str
    at: float
    returned_at: float | None = None
    cancelled_by: str | None = None


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Planned work: faults of these nodes (or racks; both empty: of all) are expected between `start` and `end`."""

    start: float
    end: float
    why: str
    nodes: frozenset[str] = frozenset()
    racks: frozenset[str] = frozenset()

    def covers(self, node: NodeFacts, now: float) -> bool:
        everywhere = not self.nodes and not self.racks
        return self.start <= now < self.end and (everywhere or node.name in self.nodes or node.rack in self.racks)


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """Most nodes out by Pitstop's doing within the window: a share of the fleet, but at least `least`; and per rack or switch."""

    window_seconds: float = 86_400.0
    share: float = 0.05
    least: int = 1
    per_rack: int = 2

    def overall(self, fleet_size: int) -> int:
        return max(self.least, int(fleet_size * self.share))


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes as they stand, what Pitstop took out, and what is planned."""

    nodes: Mapping[str, NodeFacts]
    removals: tuple[Removal, ...] = ()
    maintenance: tuple[Maintenance, ...] = ()
    limits: BreakerLimits = field(default_factory=BreakerLimits)

    def counted(self, now: float) -> frozenset[str]:
        """Nodes that the breaker counts: taken out within the window, or still out."""
        since = now - self.limits.window_seconds
        return frozenset(
            removal.node
            for removal in self.removals
            if removal.at > since or (removal.returned_at is None and not removal.cancelled_by)
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the nodes may be taken out. `take`: those that Pitstop itself would cordon; the others are out already."""

    allowed: bool
    why: tuple[str, ...]
    take: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return "; ".join(self.why)


def review(nodes: Collection[str], fleet: Fleet, now: float, frozen: str | None = None) -> Verdict:
    """May these nodes be isolated (or drained for a reset) now? Every reason against it is given."""
    against: list[str] = [] if frozen is None else [f"frozen ({frozen})"]
    if not nodes:
        against.append("no node is named")
    take: list[str] = []
    left_alone: list[str] = []
    for name in nodes:
        node = fleet.nodes.get(name)
        if node is None:
            against.append(f"{name} is no known node: a name that resolves to none is never a target")
            continue
        if node.cordoned_by is not None:
            left_alone.append(f"{name} is cordoned by {node.cordoned_by} already and left alone")
            continue
        against.extend(
            f"{name} is under planned maintenance: {window.why}" for window in fleet.maintenance if window.covers(node, now)
        )
        cancelled = _cancelled(name, fleet, now)
        if cancelled is not None:
            against.append(f"{cancelled} put {name} back by hand")
        take.append(name)
    against.extend(_breaker(take, fleet, now))
    if against:
        return Verdict(False, tuple(against))
    return Verdict(True, (*left_alone, _room(take, fleet, now)), tuple(take))


def _cancelled(name: str, fleet: Fleet, now: float) -> str | None:
    """Who undid our last isolation of this node within the window: a manual uncordon means cancel."""
    since = now - fleet.limits.window_seconds
    ours = [removal for removal in fleet.removals if removal.node == name and removal.at > since]
    return max(ours, key=lambda removal: removal.at).cancelled_by if ours else None


def _breaker(take: Collection[str], fleet: Fleet, now: float) -> list[str]:
    counted = fleet.counted(now) | set(take)
    limit = fleet.limits.overall(len(fleet.nodes))
    against = []
    if take and len(counted) > limit:
        against.append(f"breaker: {len(counted)} nodes would be out within the window, the limit is {limit}")
    racks = {fleet.nodes[name].rack for name in take} - {None}
    for rack in sorted(rack for rack in racks if rack is not None):
        out = sum(1 for name in counted if name in fleet.nodes and fleet.nodes[name].rack == rack)
        if out > fleet.limits.per_rack:
            against.append(f"breaker: {out} nodes of {rack} would be out within the window, the limit is {fleet.limits.per_rack}")
    return against


def _room(take: Collection[str], fleet: Fleet, now: float) -> str:
    out, limit = len(fleet.counted(now) | set(take)), fleet.limits.overall(len(fleet.nodes))
    return f"{out} of at most {limit} nodes out within the window"


def free_spares(fleet: Fleet, busy: Collection[str], now: float) -> tuple[str, ...]:
    """Spares that may be given work now: alive, in service, not busy, not under maintenance."""
    return tuple(
        name
        for name, node in sorted(fleet.nodes.items())
        if node.is_spare
        and node.is_alive
        and node.cordoned_by is None
        and name not in busy
        and not any(window.covers(node, now) for window in fleet.maintenance)
    )
