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
from dataclasses import dataclass
from itertools import combinations
from math import log
from typing import Literal, NamedTuple

from recovery.localization.probes import Pool, ProbeResult, link_of

__all__ = ["Blame", "Blamed", "Part", "PartKind", "Priors", "assign_blame"]

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


@dataclass(frozen=True, slots=True)
class Record:
    """Good worlds: how many each part had, and with whom each node passed."""

    passes: Counter[Part]
    partners: dict[str, set[str]]


def small_parts(members: tuple[str, ...]) -> Iterator[Part]:
    """The nodes and links that a world of these members exercises."""
    for node in members:
        yield Part("node", (node,))
    for a, b in combinations(members, 2):
        yield Part("link", link_of(a, b))


def group_parts(members: tuple[str, ...], pool: Pool) -> Iterator[Part]:
    """The groups that a world of these members exercises."""
    inside = Counter(group for node in members for group in pool.groups.get(node, ()))
    for group, count in inside.items():
        yield Part("group", (group,))
        if count < len(members):
            yield Part("uplink", (group,))


def assign_blame(
    bad: Iterable[ProbeResult], good: Sequence[ProbeResult], pool: Pool, guilty: Iterable[str] = (), priors: Priors | None = None
) -> Blame:
    """Explain the `bad` worlds; `good` ones speak for their parts. Worlds with a node of `guilty` are explained beforehand."""
    priors = priors or Priors()
    known = frozenset(guilty)
    waiting = [world for world in bad if known.isdisjoint(world.probe.members)]
    if not waiting:
        return Blame()
    record = recorded(good)
    blamed: list[Blamed] = []
    while group := likeliest_group(waiting, good, pool, record, priors):
        blamed.append(group)
        waiting = without(waiting, group)
    small, waiting = explain_by_small(waiting, record, priors)
    return Blame((*blamed, *small), tuple(waiting))


def without(worlds: Iterable[ProbeResult], blamed: Blamed) -> list[ProbeResult]:
    explained = {id(world) for world in blamed.failures}
    return [world for world in worlds if id(world) not in explained]


def recorded(good: Sequence[ProbeResult]) -> Record:
    passes: Counter[Part] = Counter()
    partners: dict[str, set[str]] = defaultdict(set)
    for world in good:
        members = world.probe.members
        passes.update(small_parts(members))
        for node in members:
            partners[node].update(members)
    return Record(passes, partners)


def explain_by_small(
    waiting: Sequence[ProbeResult], record: Record, priors: Priors
) -> tuple[tuple[Blamed, ...], list[ProbeResult]]:
    """Nodes and links that explain these worlds, the likeliest first, and the worlds that are left."""
    at: dict[Part, list[ProbeResult]] = defaultdict(list)
    for world in waiting:
        for part in small_parts(world.probe.members):
            at[part].append(world)
    blamed: list[Blamed] = []
    explained: set[int] = set()
    while at:
        best: Blamed | None = None
        for part in list(at):
            left = [world for world in at[part] if id(world) not in explained]
            if len(left) < 2:
                del at[part]
                continue
            at[part] = left
            passes = record.passes[part]
            gain = priors.gain(part.kind, len(left), passes)
            if gain >= priors.least_gain and (best is None or gain > best.gain) and stands_out(part, left, record, priors):
                best = Blamed(part, tuple(left), passes, gain)
        if best is None:
            break
        blamed.append(best)
        explained.update(id(world) for world in best.failures)
    return tuple(blamed), [world for world in waiting if id(world) not in explained]


def stands_out(part: Part, worlds: Sequence[ProbeResult], record: Record, priors: Priors) -> bool:
    """Both ends of a link must pass with others. A node must be all that its bad worlds have in common; where it passes
    elsewhere, the worlds of its links that never work count for those."""
    if part.kind == "link":
        return all(record.partners[node] - set(part.names) for node in part.names)
    node, passes = part.names[0], record.passes[part]
    if passes:
        links = Counter(link for world in worlds for link in small_parts(world.probe.members) if link.kind == "link")
        lasting = {link for link, n in links.items() if n >= priors.link_failures and not record.passes[link]}
        worlds = [world for world in worlds if not any(link in lasting for link in small_parts(world.probe.members))]
    if len(worlds) < 2 or len(frozenset.intersection(*(frozenset(world.probe.members) for world in worlds))) > 1:
        return False
    return node in worlds[0].probe.members and priors.gain("node", len(worlds), passes) >= priors.least_gain


def likeliest_group(
    waiting: Sequence[ProbeResult], good: Sequence[ProbeResult], pool: Pool, record: Record, priors: Priors
) -> Blamed | None:
    """The group that explains its bad worlds better than nodes and links could, by the largest margin; None where none does."""
    at: dict[Part, list[ProbeResult]] = defaultdict(list)
    for world in waiting:
        for part in group_parts(world.probe.members, pool):
            at[part].append(world)
    candidates = {part: worlds for part, worlds in at.items() if len(worlds) > 2}
    if not candidates:
        return None
    passes = Counter(part for world in good for part in group_parts(world.probe.members, pool) if part in candidates)
    best, margin = None, 0.0
    for part, worlds in candidates.items():
        failures = len(worlds)
        if failures < priors.group_share * (failures + passes[part]):
            continue
        if frozenset.intersection(*(frozenset(world.probe.members) for world in worlds)):
            continue
        gain = priors.gain(part.kind, failures, passes[part])
        more = gain - sum(item.gain for item in explain_by_small(worlds, record, priors)[0])
        if gain >= priors.least_gain and more > margin:
            best, margin = Blamed(part, tuple(worlds), passes[part], gain), more
    return best
