"""Error rates over many draws, beside the rules that localisation is measured against, on the same clusters."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import median

from recovery.localization.probes import Probe, ProbeResult
from recovery.localization.rounds import Effort
from recovery.localization.simulation import Cluster, FaultKind, draw_cluster, localize, named, truth

__all__ = ["PEERS", "Experiment", "Tally", "compare", "dlrover_pairing", "plain_two_rounds", "wilson"]

PLAIN, DLROVER, OURS = "plain two rounds", "DLRover's pairing", "pitstop"


def pairs_in_order(nodes: Sequence[str]) -> list[tuple[str, ...]]:
    """Neighbours in worlds of two; the last one joins the last world where their number is odd."""
    worlds: list[tuple[str, ...]] = [tuple(nodes[index : index + 2]) for index in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2 and worlds:
        worlds[-1] += (nodes[-1],)
    return worlds


def plain_two_rounds(cluster: Cluster, rng: random.Random) -> frozenset[str]:
    """Acme's rule (NSDI'24, section 6.1): pairs; then each suspect with a node that passed, and who fails again is faulty."""
    passed: list[str] = []
    suspects: list[str] = []
    for members in pairs_in_order(cluster.pool.nodes):
        (passed if cluster.run(Probe(0, 1, members), rng).passed else suspects).extend(members)
    faulty = set()
    for index, node in enumerate(suspects):
        partner = passed[index % len(passed)] if passed else None
        if partner is None or not cluster.run(Probe(1, 2, (node, partner)), rng).passed:
            faulty.add(node)
    return frozenset(faulty)


def dlrover_pairing(cluster: Cluster, rng: random.Random) -> frozenset[str]:
    """DLRover's network check: neighbours, then the fastest with the slowest; who fails both times is faulty, who takes over
    twice the median both times is slow (dlrover/python/master/elastic_training/rdzv_manager.py)."""
    first = checked(cluster, rng, pairs_in_order(cluster.pool.nodes), 1)
    order = sorted(cluster.pool.nodes, key=lambda node: (first[node].seconds, node))
    mixed = [node for pair in zip(order, reversed(order), strict=True) for node in pair][: len(order)]
    second = checked(cluster, rng, pairs_in_order(mixed), 2)
    both = (first, second)
    limits = [2.0 * median(result.seconds for result in found.values()) for found in both]
    faulty = {node for node in order if not any(found[node].passed for found in both)}
    slow = {node for node in order if all(found[node].seconds > limit for found, limit in zip(both, limits, strict=True))}
    return frozenset(faulty | {f"slow {node}" for node in slow - faulty})


def checked(cluster: Cluster, rng: random.Random, worlds: list[tuple[str, ...]], number: int) -> dict[str, ProbeResult]:
    found = {}
    for members in worlds:
        result = cluster.run(Probe(number - 1, number, members), rng)
        found.update(dict.fromkeys(members, result))
    return found


Rule = Callable[[Cluster, random.Random], frozenset[str]]
PEERS: dict[str, Rule] = {PLAIN: plain_two_rounds, DLROVER: dlrover_pairing}


def wilson(hits: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; (0, 1) where nothing was counted."""
    if not of:
        return 0.0, 1.0
    z = 1.959964
    share, bend = hits / of, z * z / of
    middle = (share + bend / 2) / (1 + bend)
    half = z * sqrt(share * (1 - share) / of + bend / (4 * of)) / (1 + bend)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(slots=True)
class Tally:
    """What was named rightly, wrongly, and missed, over draws. `exact`: draws of which everything was right."""

    draws: int = 0
    exact: int = 0
    right: int = 0
    wrong: int = 0
    missed: int = 0

    def add(self, broken: frozenset[str], blamed: frozenset[str]) -> None:
        self.draws += 1
        self.exact += broken == blamed
        self.right += len(broken & blamed)
        self.wrong += len(blamed - broken)
        self.missed += len(broken - blamed)

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        return self.right / (self.right + self.missed) if self.right + self.missed else 1.0

    @property
    def precision_interval(self) -> tuple[float, float]:
        return wilson(self.right, self.right + self.wrong)

    @property
    def recall_interval(self) -> tuple[float, float]:
        return wilson(self.right, self.right + self.missed)


@dataclass(slots=True)
class Experiment:
    """One kind of fault in clusters of one size: a tally for each rule, and what localisation took (one entry a draw)."""

    kind: FaultKind
    nodes: int
    share: float
    tallies: dict[str, Tally] = field(default_factory=dict)
    turns: list[int] = field(default_factory=list)
    probes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def compare(
    kind: FaultKind,
    nodes: int,
    share: float,
    draws: int,
    seed: int,
    effort: Effort | None = None,
    peers: bool = True,
    enough: Callable[[], bool] = lambda: False,
) -> Experiment:
    """Draw clusters and let every rule say what is broken; the same seed gives the same draws. `enough` ends it early, after one
    draw at least."""
    found = Experiment(kind, nodes, share, {name: Tally() for name in (OURS, *(PEERS if peers else ()))})
    rng = random.Random(f"{seed}/{kind}/{nodes}/{share}")
    for _ in range(draws):
        cluster = draw_cluster(kind, nodes, share, rng)
        broken = truth(cluster)
        measured = localize(cluster, rng, effort)
        found.tallies[OURS].add(broken, named(measured.localization))
        found.turns.append(measured.turns)
        found.probes.append(measured.probes)
        found.seconds.append(measured.seconds)
        for name, rule in PEERS.items() if peers else ():
            found.tallies[name].add(broken, rule(cluster, rng))
        if enough():
            break
    return found
