"""Simulated clusters with known faults: how often localisation is right, beside the rules that it is measured against.

Fault rates are per draw; times are seconds of the simulated world. Acme's plain two-round rule and DLRover's pairing (neighbours,
then the fastest with the slowest) run on the same draws.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from recovery.localization.judgement import judge
from recovery.localization.probes import Link, Localization, Outcome, Pool, Probe, ProbeResult, Verdict, link_of
from recovery.localization.rounds import Effort, next_probes

__all__ = ["Cluster", "FaultKind", "Measured", "Tally", "dlrover_pairing", "draw_cluster", "localize", "plain_two_rounds"]

WARM_SECONDS, TIMEOUT_SECONDS, NOISE = 0.15, 5.0, 0.05


class FaultKind(StrEnum):
    HARD = "hard"
    ALONE = "alone"
    INTERMITTENT_60 = "intermittent_0.6"
    INTERMITTENT_30 = "intermittent_0.3"
    SLOW = "slow"
    LINK = "link"
    GROUP = "group"


FAILS = {FaultKind.HARD: 1.0, FaultKind.ALONE: 1.0, FaultKind.INTERMITTENT_60: 0.6, FaultKind.INTERMITTENT_30: 0.3}


@dataclass(frozen=True, slots=True)
class Cluster:
    """The truth of one draw: what is broken, and how."""

    pool: Pool
    nodes: dict[str, FaultKind] = field(default_factory=dict)
    links: frozenset[Link] = frozenset()
    groups: frozenset[str] = frozenset()

    def run(self, probe: Probe, rng: random.Random) -> ProbeResult:
        """What the probe would show on this cluster."""
        seconds = WARM_SECONDS * rng.lognormvariate(0.0, NOISE)
        members = probe.members
        if len(members) == 1:
            broken = self.nodes.get(members[0]) is FaultKind.ALONE
        else:
            broken = any(rng.random() < FAILS.get(self.nodes[node], 0.0) for node in members if node in self.nodes)
            broken = broken or any(self.pool.groups.get(node) in self.groups for node in members)
            broken = broken or any(link_of(a, b) in self.links for i, a in enumerate(members) for b in members[i + 1 :])
            if any(self.nodes.get(node) is FaultKind.SLOW for node in members):
                seconds *= 3.0
        return ProbeResult(probe, Outcome.TIMED_OUT, TIMEOUT_SECONDS) if broken else ProbeResult(probe, Outcome.PASSED, seconds)


def draw_cluster(kind: FaultKind, nodes: int, share: float, rng: random.Random, group_size: int = 16) -> Cluster:
    """A cluster of `nodes` nodes of which `share` (0..1, at least one; of links or groups one) bear a fault of `kind`."""
    names = [f"n{index:04d}" for index in range(nodes)]
    pool = Pool(
        tuple(names), groups={name: f"r{index // min(group_size, max(2, nodes // 4)):03d}" for index, name in enumerate(names)}
    )
    if kind is FaultKind.LINK:
        return Cluster(pool, links=frozenset({link_of(*rng.sample(names, 2))}))
    if kind is FaultKind.GROUP:
        return Cluster(pool, groups=frozenset({rng.choice(sorted(set(pool.groups.values())))}))
    count = round(share * nodes) if share else 0
    return Cluster(pool, {name: kind for name in rng.sample(names, max(count, 1) if share else 0)})


@dataclass(frozen=True, slots=True)
class Measured:
    """One localisation: its verdict, the batches and probes that it took, and its simulated seconds."""

    localization: Localization
    batches: int
    probes: int
    seconds: float


def localize(cluster: Cluster, rng: random.Random, effort: Effort | None = None) -> Measured:
    """Run the rounds on a simulated cluster until nothing more would be learnt or the time is up."""
    effort = effort or Effort()
    results: list[ProbeResult] = []
    seconds, batches = 0.0, 0
    while seconds < effort.seconds:
        batch = next_probes(cluster.pool, results, effort)
        if not batch:
            break
        outcome = [cluster.run(probe, rng) for probe in batch]
        seconds += max(result.seconds for result in outcome)
        batches += 1
        results += outcome
    return Measured(judge(cluster.pool, results, effort.rules), batches, len(results), seconds)


def pairs_in_order(nodes: Sequence[str]) -> list[tuple[str, ...]]:
    groups = [tuple(nodes[index : index + 2]) for index in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2 and groups:
        groups[-1] += (nodes[-1],)
    return groups


def plain_two_rounds(cluster: Cluster, rng: random.Random) -> frozenset[str]:
    """Acme's rule: pairs; then each suspect with a node that passed; who fails again is faulty."""
    passed: list[str] = []
    suspects: list[str] = []
    for members in pairs_in_order(cluster.pool.nodes):
        (passed if cluster.run(Probe(1, members), rng).passed else suspects).extend(members)
    faulty = set()
    for index, node in enumerate(suspects):
        partner = passed[index % len(passed)] if passed else None
        if partner is None or not cluster.run(Probe(2, (node, partner)), rng).passed:
            faulty.add(node)
    return frozenset(faulty)


def dlrover_pairing(cluster: Cluster, rng: random.Random) -> frozenset[str]:
    """DLRover's network check: neighbours first, then the fastest with the slowest; who fails both times is faulty."""
    times: dict[str, float] = {}
    first: set[str] = set()
    for members in pairs_in_order(cluster.pool.nodes):
        result = cluster.run(Probe(1, members), rng)
        times.update(dict.fromkeys(members, result.seconds))
        first |= set() if result.passed else set(members)
    order = sorted(cluster.pool.nodes, key=lambda node: (times[node], node))
    mixed = [node for pair in zip(order, reversed(order), strict=True) for node in pair][: len(order)]
    second: set[str] = set()
    for members in pairs_in_order(mixed):
        second |= set() if cluster.run(Probe(2, members), rng).passed else set(members)
    return frozenset(first & second)


@dataclass(slots=True)
class Tally:
    """Counts over draws, from which precision and recall follow."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    def add(self, truth: frozenset[str], named: frozenset[str]) -> None:
        self.right += len(truth & named)
        self.wrong += len(named - truth)
        self.missed += len(truth - named)

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        return self.right / (self.right + self.missed) if self.right + self.missed else 1.0


def truth_and_named(cluster: Cluster, found: Localization) -> tuple[frozenset[str], frozenset[str]]:
    """What is broken and what was named, as strings of one kind: nodes, `a-b` for links, `group:g` for groups."""
    truth = {*cluster.nodes, *(f"{a}-{b}" for a, b in cluster.links), *(f"group:{group}" for group in cluster.groups)}
    grouped = {node for node in cluster.pool.nodes if cluster.pool.groups.get(node) in found.groups}
    named = {
        *({*found.named(Verdict.FAULTY), *found.named(Verdict.SLOW)} - grouped),
        *(f"{a}-{b}" for (a, b) in found.links),
        *(f"group:{group}" for group in found.groups),
    }
    return frozenset(truth), frozenset(named)


Rule = Callable[[Cluster, random.Random], frozenset[str]]
PEERS: dict[str, Rule] = {"plain two rounds": plain_two_rounds, "DLRover's pairing": dlrover_pairing}
