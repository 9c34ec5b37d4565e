"""Who explains the worlds that went badly: the fewest, likeliest parts, by a greedy comparison of likelihoods.

A bad world proves only that something in it is broken. A part (node, link, group) that had f bad and s good worlds explains the
bad ones by being broken at the rate f / (f + s); not blaming it means that f disturbances came by chance. The gain of blaming it
is the logarithm of the one likelihood over the other, with the part's prior: a node that failed with two partners and passed with
none gains most, a good node that met two bad ones but passes with twenty gains little, and a link explains what it alone has in
common. The part that gains most is blamed first and takes the worlds that it explains with it. A group is blamed before all that
where it explains its worlds better than any nodes and links in them do together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, combinations
from math import log
from typing import Literal, NamedTuple

from recovery.localization.probes import Pool, ProbeResult, link_of

__all__ = ["Blame", "Blamed", "Part", "PartKind", "Priors", "Record", "assign_blame"]

# "group": whatever touches it fails (a dead leaf switch); "uplink": whatever leaves or enters it fails.
PartKind = Literal["node", "link", "group", "uplink"]


class Part(NamedTuple):
    """Something that can be broken; two names for a link, one for the others."""

    kind: PartKind
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Priors:
    """How likely a part is broken before any probe, and that a world between good parts goes badly by chance. Below `least_gain`
    nobody is blamed; a group is only where `group_share` of its worlds or more are bad. A link that failed `link_failures` times
    and never passed is taken for broken."""

    node: float = 1e-2
    link: float = 1e-3
    group: float = 1e-3
    chance: float = 1e-3
    least_gain: float = 3.0
    group_share: float = 0.8
    link_failures: int = 3

    def gain(self, kind: PartKind, failures: int, passes: int) -> float:
        """Log-likelihood gained by blaming a part with `failures` > 0 bad and `passes` good worlds."""
        rate = failures / (failures + passes)
        broken = failures * log(rate) + (passes * log(1 - rate) if passes else 0.0)
        prior = self.node if kind == "node" else self.link if kind == "link" else self.group
        return broken - failures * log(self.chance) + log(prior)


@dataclass(frozen=True, slots=True)
class Blamed:
    """One part with the bad worlds that it explains, how many good worlds it had, and what blaming it gains."""

    part: Part
    failures: tuple[ProbeResult, ...]
    passes: int
    gain: float


@dataclass(frozen=True, slots=True)
class Blame:
    """The parts to blame, and the bad worlds that none of them explains."""

    blamed: tuple[Blamed, ...] = ()
    unexplained: tuple[ProbeResult, ...] = ()


@dataclass(slots=True)
class Record:
    """Good worlds: how many each part had. `less`: those of them that do not count."""

    pool: Pool
    passes: Counter[Part] = field(default_factory=Counter)
    less: Record | None = None

    def add(self, members: tuple[str, ...]) -> None:
        """One more good world."""
        for part in (*small_parts(members), *group_parts(members, self.pool)):
            self.passes[part] += 1

    def without(self, worlds: Sequence[ProbeResult]) -> Record:
        """The same but for these worlds, all of which are in it."""
        less = Record(self.pool)
        for world in worlds:
            less.add(world.probe.members)
        return Record(self.pool, self.passes, less)

    def passes_of(self, part: Part) -> int:
        return self.passes[part] - (self.less.passes[part] if self.less is not None else 0)


@lru_cache(1 << 16)
def small_parts(members: tuple[str, ...]) -> tuple[Part, ...]:
    """The nodes and links that a world of these members exercises."""
    nodes = (Part("node", (node,)) for node in members)
    return (*nodes, *(Part("link", link_of(a, b)) for a, b in combinations(members, 2)))


def group_parts(members: tuple[str, ...], pool: Pool) -> Iterator[Part]:
    """The groups that a world of these members exercises."""
    groups = [pool.groups.get(node, ()) for node in members]
    for group in dict.fromkeys(chain.from_iterable(groups)):
        yield Part("group", (group,))
        if not all(group in mine for mine in groups):
            yield Part("uplink", (group,))


def assign_blame(bad: Iterable[ProbeResult], record: Record, guilty: Iterable[str] = (), priors: Priors | None = None) -> Blame:
    """Explain the `bad` worlds; the good ones of `record` speak for their parts. Worlds with a node of `guilty` are explained
    beforehand."""
    priors = priors or Priors()
    known = frozenset(guilty)
    waiting = [world for world in bad if known.isdisjoint(world.probe.members)]
    if not waiting:
        return Blame()
    blamed: list[Blamed] = []
    while group := likeliest_group(waiting, record, priors):
        blamed.append(group)
        waiting = without(waiting, group)
    small, waiting = explain_by_small(waiting, record, priors)
    return Blame((*blamed, *small), tuple(waiting))


def without(worlds: Iterable[ProbeResult], blamed: Blamed) -> list[ProbeResult]:
    explained = {id(world) for world in blamed.failures}
    return [world for world in worlds if id(world) not in explained]


def explain_by_small(
    waiting: Sequence[ProbeResult], record: Record, priors: Priors
) -> tuple[tuple[Blamed, ...], list[ProbeResult]]:
    """Nodes and links that explain these worlds, the likeliest first, and the worlds that are left."""
    at: dict[Part, list[ProbeResult]] = defaultdict(list)
    for world in waiting:
        for part in small_parts(world.probe.members):
            at[part].append(world)
    charges = {part: charge for part, worlds in at.items() if (charge := charged(part, worlds, record, priors)) is not None}
    blamed: list[Blamed] = []
    explained: set[int] = set()
    while charges:
        best = max(charges.values(), key=lambda charge: charge.gain)
        blamed.append(best)
        explained.update(id(world) for world in best.failures)
        for part in {part for world in best.failures for part in small_parts(world.probe.members)}:
            at[part] = [world for world in at[part] if id(world) not in explained]
            charge = charged(part, at[part], record, priors)
            if charge is None:
                charges.pop(part, None)
            else:
                charges[part] = charge
    return tuple(blamed), [world for world in waiting if id(world) not in explained]


def charged(part: Part, worlds: Sequence[ProbeResult], record: Record, priors: Priors) -> Blamed | None:
    """What speaks for blaming a node or link for these bad worlds of it; None where too little does."""
    if len(worlds) < 2:
        return None
    passes = record.passes_of(part)
    gain = priors.gain(part.kind, len(worlds), passes)
    if gain < priors.least_gain or not stands_out(part, worlds, record, priors):
        return None
    return Blamed(part, tuple(worlds), passes, gain)


def stands_out(part: Part, worlds: Sequence[ProbeResult], record: Record, priors: Priors) -> bool:
    """Both ends of a link must pass with others. A node must be all that its bad worlds have in common; where it passes
    elsewhere, the worlds of its links that never work count for those."""
    if part.kind == "link":
        together = record.passes_of(part)
        return all(record.passes_of(Part("node", (node,))) > together for node in part.names)
    node, passes = part.names[0], record.passes_of(part)
    if passes:
        links = Counter(link for world in worlds for link in small_parts(world.probe.members) if link.kind == "link")
        lasting = {link for link, n in links.items() if n >= priors.link_failures and not record.passes_of(link)}
        worlds = [world for world in worlds if not any(link in lasting for link in small_parts(world.probe.members))]
    if len(worlds) < 2 or len(frozenset.intersection(*(frozenset(world.probe.members) for world in worlds))) > 1:
        return False
    return node in worlds[0].probe.members and priors.gain("node", len(worlds), passes) >= priors.least_gain


def likeliest_group(waiting: Sequence[ProbeResult], record: Record, priors: Priors) -> Blamed | None:
    """The group that explains its bad worlds better than nodes and links could, by the largest margin; None where none does."""
    at: dict[Part, list[ProbeResult]] = defaultdict(list)
    for world in waiting:
        for part in group_parts(world.probe.members, record.pool):
            at[part].append(world)
    candidates = {part: worlds for part, worlds in at.items() if len(worlds) > 2}
    if not candidates:
        return None
    best, margin = None, 0.0
    for part, worlds in candidates.items():
        failures, passes = len(worlds), record.passes_of(part)
        if failures < priors.group_share * (failures + passes):
            continue
        if frozenset.intersection(*(frozenset(world.probe.members) for world in worlds)):
            continue
        gain = priors.gain(part.kind, failures, passes)
        more = gain - sum(item.gain for item in explain_by_small(worlds, record, priors)[0])
        if gain >= priors.least_gain and more > margin:
            best, margin = Blamed(part, tuple(worlds), passes, gain), more
    return best
