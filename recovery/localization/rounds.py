"""Which probes come next: round 0 alone, round 1 in pairs, round 2 suspects with confirmed-good partners, round 3 links.

All probes of one batch are disjoint and run at the same time. Acme's rule is rounds 1 and 2 once each; repeats with other
partners find intermittent faults, and round 3 tells a bad link from a bad node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from recovery.localization.judgement import Rules, slow_threshold
from recovery.localization.probes import Pool, Probe, ProbeResult, link_of

__all__ = ["Effort", "next_probes"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to look. Counts are probes a node (or a link) of each round; `seconds` is the limit of the whole localisation."""

    alone: int = 1
    screening: int = 10
    confirmation: int = 12
    link: int = 3
    seconds: float = 60.0
    rules: Rules = field(default_factory=Rules)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the results so far say of each node, before any judgement."""

    failed_alone: frozenset[str]
    suspects: tuple[str, ...]
    good: tuple[str, ...]


def is_bad(result: ProbeResult, limit: float) -> bool:
    return not result.passed or (len(result.probe.members) > 1 and result.seconds > limit)


def standing_of(pool: Pool, results: Sequence[ProbeResult], effort: Effort) -> Standing:
    limit = slow_threshold(results, effort.rules)
    worlds = [result for result in results if len(result.probe.members) > 1]
    failures = Counter(result.probe.members[0] for result in results if len(result.probe.members) == 1 and not result.passed)
    out = frozenset(node for node, count in failures.items() if count >= effort.rules.alone_failures)
    screened = [result for result in worlds if result.probe.round == 1]
    touched = {node for result in screened if is_bad(result, limit) for node in result.probe.members}
    suspects = tuple(node for node in pool.everyone if node in touched and node not in out)
    passed = {node for result in worlds if not is_bad(result, limit) for node in result.probe.members}
    good = tuple(node for node in pool.everyone if node in passed and node not in touched and node not in out)
    return Standing(out, suspects, good)


def next_probes(pool: Pool, results: Sequence[ProbeResult], effort: Effort | None = None) -> tuple[Probe, ...]:
    """The next batch of disjoint probes, given every result so far; empty when nothing more would be learnt."""
    effort = effort or Effort()
    return (
        alone_round(pool, results, effort)
        or screening_round(pool, results, effort)
        or confirmation_round(pool, results, effort)
        or link_round(pool, results, effort)
    )


def alone_round(pool: Pool, results: Sequence[ProbeResult], effort: Effort) -> tuple[Probe, ...]:
    tried = Counter(result.probe.members[0] for result in results if result.probe.round == 0)
    failed = {result.probe.members[0] for result in results if result.probe.round == 0 and not result.passed}
    wanted = {node: effort.rules.alone_failures if node in failed else effort.alone for node in pool.everyone}
    return tuple(Probe(0, (node,)) for node in pool.everyone if tried[node] < wanted[node])


def spread(pool: Pool, nodes: Sequence[str]) -> list[str]:
    """`nodes` in an order in which the first and the second half come from different groups as far as possible."""
    return sorted(nodes, key=lambda node: (pool.groups.get(node, ""), node))


def screening_round(pool: Pool, results: Sequence[ProbeResult], effort: Effort) -> tuple[Probe, ...]:
    """Pairs of nodes that nothing speaks against yet, other partners each time; of an odd number one world is of three."""
    done = len({result.probe.members for result in results if result.probe.round == 1 and result.probe.members})
    rounds = rounds_run(results, 1)
    if rounds >= effort.screening and done:
        return ()
    standing = standing_of(pool, results, effort)
    nodes = spread(pool, [node for node in pool.everyone if node not in standing.failed_alone and node not in standing.suspects])
    if len(nodes) < 2:
        return ()
    if rounds and len(nodes) == 2 and standing.good:
        # Two good nodes can only repeat what they showed; it is the number of rounds that finds an intermittent fault.
        return (Probe(1, (nodes[0], nodes[1])),)
    half, odd = divmod(len(nodes), 2)
    lower, upper = nodes[:half], nodes[half : 2 * half]
    shift = rounds % half
    pairs = [(lower[index], upper[(index + shift) % half]) for index in range(half)]
    if odd:
        pairs[rounds % half] += (nodes[-1],)  # type: ignore[operator]
    return tuple(Probe(1, members) for members in pairs)


def rounds_run(results: Sequence[ProbeResult], number: int) -> int:
    """How many batches of a round were run: the most that any one node took part in."""
    counts = Counter(node for result in results if result.probe.round == number for node in result.probe.members)
    return max(counts.values(), default=0)


def confirmation_round(pool: Pool, results: Sequence[ProbeResult], effort: Effort) -> tuple[Probe, ...]:
    """Each suspect with a good partner that it has not met; where there is no good node, suspects with one another."""
    standing = standing_of(pool, results, effort)
    limit = slow_threshold(results, effort.rules)
    worlds = [result for result in results if len(result.probe.members) > 1]
    tried = Counter(node for result in worlds if result.probe.round == 2 for node in result.probe.members)
    bad_partners = {node: set[str]() for node in standing.suspects}
    for result in worlds:
        if len(result.probe.members) == 2 and is_bad(result, limit):
            a, b = result.probe.members
            for node, other in ((a, b), (b, a)):
                if node in bad_partners:
                    bad_partners[node].add(other)
    convicted = {
        node for node in standing.suspects if len(bad_partners[node] & set(standing.good)) >= effort.rules.distinct_partners
    }
    waiting = [node for node in standing.suspects if node not in convicted and tried[node] < effort.confirmation]
    if not waiting:
        return ()
    met = Counter(link_of(*result.probe.members) for result in worlds if len(result.probe.members) == 2)
    if not standing.good:
        return suspects_together(waiting, met)
    free = list(standing.good)
    probes = []
    for node in sorted(waiting, key=lambda each: tried[each]):
        if not free:
            break
        # The least tried partner first; a partner from another group shows a fault of the node's whole group.
        partner = min(
            free,
            key=lambda other: (
                met[link_of(node, other)],
                pool.groups.get(other) == pool.groups.get(node, object()),
                tried[other],
            ),
        )
        free.remove(partner)
        probes.append(Probe(2, (node, partner)))
    return tuple(probes)


def suspects_together(waiting: Sequence[str], met: Counter[tuple[str, str]]) -> tuple[Probe, ...]:
    """Disjoint pairs of suspects that have not met: one that passes gives two good nodes."""
    free, probes = list(waiting), []
    while len(free) >= 2:
        node = free.pop(0)
        partner = min(free, key=lambda other: met[link_of(node, other)])
        if met[link_of(node, partner)] >= 2:
            continue
        free.remove(partner)
        probes.append(Probe(2, (node, partner)))
    return tuple(probes)


def link_round(pool: Pool, results: Sequence[ProbeResult], effort: Effort) -> tuple[Probe, ...]:
    """Again the pairs that failed although both ends pass with others: a link keeps failing, a passing disturbance does not."""
    limit = slow_threshold(results, effort.rules)
    worlds = [result for result in results if len(result.probe.members) > 1]
    bad = {link_of(*result.probe.members) for result in worlds if len(result.probe.members) == 2 and is_bad(result, limit)}
    quick: dict[str, set[str]] = {node: set() for node in pool.everyone}
    for result in worlds:
        if not is_bad(result, limit):
            for a, b in combinations(result.probe.members, 2):
                quick[a].add(b)
                quick[b].add(a)
    tried = Counter(link_of(*result.probe.members) for result in worlds if result.probe.round == 3)
    probes, busy = [], set[str]()
    for a, b in sorted(bad):
        if tried[(a, b)] < effort.link and quick[a] - {b} and quick[b] - {a} and not {a, b} & busy:
            busy |= {a, b}
            probes.append(Probe(3, (a, b)))
    return tuple(probes)
