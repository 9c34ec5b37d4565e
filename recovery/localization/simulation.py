"""Simulated clusters with known faults, and the probes that they would show. Times are seconds of the simulated world."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations

from recovery.localization.judgement import judge
from recovery.localization.probes import Link, Localization, Outcome, Pool, Probe, ProbeResult, Verdict, link_of
from recovery.localization.rounds import Effort, next_probes
from recovery.localization.standing import Ledger

__all__ = ["Cluster", "FaultKind", "Measured", "Timing", "draw_cluster", "localize", "named", "truth"]


class FaultKind(StrEnum):
    """`link`: on the job's ring; `far_link`: between any two nodes; `group`: a leaf switch, nothing that touches its nodes works;
    `uplink`: nothing works that leaves or enters the group."""

    HEALTHY = "healthy"
    HARD = "hard"
    ALONE = "alone"
    INTERMITTENT_60 = "intermittent_0.6"
    INTERMITTENT_30 = "intermittent_0.3"
    SLOW = "slow"
    LINK = "link"
    FAR_LINK = "far_link"
    GROUP = "group"
    UPLINK = "uplink"


FAILS = {FaultKind.HARD: 1.0, FaultKind.INTERMITTENT_60: 0.6, FaultKind.INTERMITTENT_30: 0.3}


@dataclass(frozen=True, slots=True)
class Timing:
    """A warm probe between good nodes takes `warm_seconds`, log-normally spread by `noise`, a failed one `timeout_seconds`; a
    slow node makes it `slow_factor` times as long; directing one batch costs `batch_seconds` besides."""

    warm_seconds: float = 0.15
    timeout_seconds: float = 2.0
    noise: float = 0.1
    slow_factor: float = 3.0
    batch_seconds: float = 0.25


@dataclass(frozen=True, slots=True)
class Cluster:
    """The truth of one draw: what is broken, and how."""

    pool: Pool
    nodes: dict[str, FaultKind] = field(default_factory=dict)
    links: frozenset[Link] = frozenset()
    groups: frozenset[str] = frozenset()
    uplinks: frozenset[str] = frozenset()
    timing: Timing = Timing()

    def run(self, probe: Probe, rng: random.Random) -> ProbeResult:
        """What the probe would show on this cluster."""
        members = probe.members
        faults = [self.nodes[node] for node in members if node in self.nodes]
        if len(members) == 1:
            broken = FaultKind.ALONE in faults
        else:
            broken = FaultKind.ALONE in faults or any(rng.random() < FAILS.get(fault, 0.0) for fault in faults)
            broken = broken or any(link_of(a, b) in self.links for a, b in combinations(members, 2)) if self.links else broken
            broken = broken or self._cut(members)
        if broken:
            return ProbeResult(probe, Outcome.TIMED_OUT, self.timing.timeout_seconds)
        seconds = self.timing.warm_seconds * rng.lognormvariate(0.0, self.timing.noise)
        if FaultKind.SLOW in faults and len(members) > 1:
            seconds *= self.timing.slow_factor
        return ProbeResult(probe, Outcome.PASSED, seconds)

    def _cut(self, members: tuple[str, ...]) -> bool:
        if not self.groups and not self.uplinks:
            return False
        groups = [set(self.pool.groups.get(node, ())) for node in members]
        touched = set[str]().union(*groups)
        inside = groups[0].intersection(*groups[1:])
        return bool(self.groups & touched or self.uplinks & (touched - inside))


def draw_cluster(kind: FaultKind, nodes: int, share: float, rng: random.Random, group_size: int = 16) -> Cluster:
    """A cluster of `nodes` nodes of which `share` (0 to 1, at least one) bear a fault of `kind`: of nodes, of the links of the
    ring, or of groups. Groups have `group_size` nodes, a quarter of a small cluster, two at least;
    the last one takes what is left over."""
    names = tuple(f"n{index:04d}" for index in range(nodes))
    size = min(group_size, max(2, nodes // 4))
    pool = Pool(
        names, groups={name: (f"r{min(index // size, max(1, nodes // size) - 1):03d}",) for index, name in enumerate(names)}
    )
    whole = Cluster(pool)
    if kind is FaultKind.HEALTHY or not share:
        return whole
    if kind is FaultKind.LINK:
        ring = sorted({link_of(names[index - 1], names[index]) for index in range(nodes)})
        return replace(whole, links=frozenset(rng.sample(ring, count_of(share, len(ring)))))
    if kind is FaultKind.FAR_LINK:
        return replace(whole, links=frozenset(link_of(*rng.sample(names, 2)) for _ in range(count_of(share, nodes))))
    if kind in (FaultKind.GROUP, FaultKind.UPLINK):
        groups = sorted({group for node in names for group in pool.groups[node]})
        broken = frozenset(rng.sample(groups, count_of(share, len(groups))))
        return replace(whole, groups=broken) if kind is FaultKind.GROUP else replace(whole, uplinks=broken)
    return replace(whole, nodes=dict.fromkeys(rng.sample(names, count_of(share, nodes)), kind))


def count_of(share: float, of: int) -> int:
    return max(1, round(share * of))


@dataclass(frozen=True, slots=True)
class Measured:
    """One localisation: its verdicts, the batches and probes that it took, and its simulated seconds."""

    localization: Localization
    turns: int
    probes: int
    seconds: float


def localize(cluster: Cluster, rng: random.Random, effort: Effort | None = None) -> Measured:
    """Probe a simulated cluster until nothing more would be learnt or the time is up."""
    ledger, seconds = Ledger(cluster.pool), 0.0
    while batch := next_probes(ledger, effort, seconds):
        outcome = [cluster.run(probe, rng) for probe in batch]
        seconds += max(result.seconds for result in outcome) + cluster.timing.batch_seconds
        ledger.add(outcome)
    return Measured(judge(ledger), ledger.turns, len(ledger.results), seconds)


def truth(cluster: Cluster) -> frozenset[str]:
    """What is broken, named as in `named`."""
    return frozenset(
        (
            *(f"slow {node}" if fault is FaultKind.SLOW else node for node, fault in cluster.nodes.items()),
            *(" - ".join(link) for link in cluster.links),
            *(f"group {group}" for group in cluster.groups | cluster.uplinks),
        )
    )


def named(found: Localization) -> frozenset[str]:
    """What a localisation blames: nodes by name, slow ones so called, links by both ends, groups so called."""
    return frozenset(
        (
            *found.named(Verdict.FAULTY),
            *(f"slow {node}" for node in found.named(Verdict.SLOW)),
            *(("slow " if finding.verdict is Verdict.SLOW else "") + " - ".join(link) for link, finding in found.links.items()),
            *(("slow " if finding.verdict is Verdict.SLOW else "") + f"group {group}" for group, finding in found.groups.items()),
        )
    )
