"""What a set of probe results proves about nodes, links and groups.

A failed world proves only that something in it is broken. A node is blamed when it failed with two different partners, or alone;
a link when the same pair keeps failing although both ends pass with others. The fewest blamed nodes that explain all failures win.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from recovery.localization.probes import Finding, Link, Localization, Pool, ProbeResult, Verdict, link_of

__all__ = ["Rules", "judge", "slow_threshold"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of judgement. A world is slow beyond `slow_factor` times the median world; a group fails as one from `group_share`."""

    distinct_partners: int = 2
    alone_failures: int = 2
    link_failures: int = 2
    slow_factor: float = 1.5
    group_share: float = 0.8


def slow_threshold(results: Iterable[ProbeResult], rules: Rules) -> float:
    """Seconds beyond which a passed world counts as slow; infinite where fewer than three worlds passed."""
    times = [result.seconds for result in results if result.passed and len(result.probe.members) > 1]
    return rules.slow_factor * median(times) if len(times) >= 3 else float("inf")


@dataclass(frozen=True, slots=True)
class Blame:
    """Who is to blame for one kind of bad result, and which bad results nobody is blamed for."""

    nodes: dict[str, tuple[ProbeResult, ...]]
    links: dict[Link, tuple[ProbeResult, ...]]
    unexplained: tuple[ProbeResult, ...]


def partners_of(node: str, worlds: Iterable[ProbeResult]) -> set[str]:
    return {other for world in worlds for other in world.probe.members if other != node and node in world.probe.members}


def assign_blame(bad: Sequence[ProbeResult], good: Sequence[ProbeResult], guilty: Iterable[str], rules: Rules) -> Blame:
    """Explain every bad world by as few nodes as possible, then by links; `guilty` nodes explain theirs beforehand."""
    passes: dict[str, set[str]] = defaultdict(set)
    for world in good:
        for a, b in combinations(world.probe.members, 2):
            passes[a].add(b)
            passes[b].add(a)
    known = set(guilty)
    open_worlds = [world for world in bad if not known & set(world.probe.members)]
    nodes: dict[str, tuple[ProbeResult, ...]] = {}
    while True:
        # Worlds of two speak for themselves; a larger one only says that some member is broken.
        pairs = [world for world in open_worlds if len(world.probe.members) == 2]
        candidates = {node for world in pairs for node in world.probe.members}
        ranked = sorted(candidates, key=lambda node: (-len(partners_of(node, pairs)), len(passes[node]), node))
        if not ranked or len(partners_of(ranked[0], pairs)) < rules.distinct_partners:
            break
        blamed = ranked[0]
        nodes[blamed] = tuple(world for world in bad if blamed in world.probe.members)
        open_worlds = [world for world in open_worlds if blamed not in world.probe.members]
    links: dict[Link, tuple[ProbeResult, ...]] = {}
    by_link: dict[Link, list[ProbeResult]] = defaultdict(list)
    for world in open_worlds:
        if len(world.probe.members) == 2:
            by_link[link_of(*world.probe.members)].append(world)
    for (a, b), worlds in by_link.items():
        if len(worlds) >= rules.link_failures and passes[a] - {b} and passes[b] - {a}:
            links[(a, b)] = tuple(worlds)
            open_worlds = [world for world in open_worlds if not {a, b} <= set(world.probe.members)]
    return Blame(nodes, links, tuple(open_worlds))


def judge(pool: Pool, results: Sequence[ProbeResult], rules: Rules | None = None) -> Localization:
    """The verdict on every node of `pool`, and on links and groups where they are the cause."""
    rules = rules or Rules()
    alone = [result for result in results if len(result.probe.members) == 1]
    worlds = [result for result in results if len(result.probe.members) > 1]
    failed = [result for result in worlds if not result.passed]
    limit = slow_threshold(worlds, rules)
    passed = [result for result in worlds if result.passed]
    slow = [result for result in passed if result.seconds > limit]

    nodes: dict[str, Finding] = {}
    for node in pool.everyone:
        failures = tuple(result for result in alone if result.probe.members == (node,) and not result.passed)
        if len(failures) >= rules.alone_failures:
            nodes[node] = Finding(Verdict.FAULTY, f"failed alone {len(failures)} times, with no other node involved", failures)

    broken = assign_blame(failed, passed, nodes, rules)
    for node, evidence in broken.nodes.items():
        partners = sorted(partners_of(node, evidence))
        nodes[node] = Finding(
            Verdict.FAULTY, f"failed with {len(partners)} different partners ({', '.join(partners[:4])})", evidence
        )
    dragging = assign_blame(slow, [result for result in passed if result.seconds <= limit], nodes, rules)
    for node, evidence in dragging.nodes.items():
        nodes[node] = Finding(Verdict.SLOW, f"every one of its {len(evidence)} slow worlds took over {limit:.3g} s", evidence)

    links = {
        link: Finding(Verdict.FAULTY, f"failed {len(evidence)} times; both ends pass with others", evidence)
        for link, evidence in broken.links.items()
    }
    for link, evidence in dragging.links.items():
        links.setdefault(link, Finding(Verdict.SLOW, f"slow {len(evidence)} times; both ends are quick with others", evidence))

    groups = failed_groups(pool, nodes, rules)
    for group, finding in groups.items():
        for node in pool.everyone:
            if pool.groups.get(node) == group and node in nodes:
                nodes[node] = Finding(nodes[node].verdict, f"its group {group} fails as one: {finding.why}", nodes[node].evidence)

    doubtful = {node: world for world in broken.unexplained for node in world.probe.members}
    for node in pool.everyone:
        if node in nodes:
            continue
        proof = tuple(result for result in passed if node in result.probe.members)
        if node in doubtful:
            others = "-".join(doubtful[node].probe.members)
            nodes[node] = Finding(
                Verdict.UNDECIDED, f"{others} failed, and nothing tells which of them is broken", (doubtful[node],)
            )
        elif proof:
            nodes[node] = Finding(Verdict.GOOD, f"passed {len(proof)} worlds", proof)
        else:
            nodes[node] = Finding(Verdict.UNDECIDED, "no world with it passed, and none blames it")
    return Localization(nodes, links, groups, tuple(results))


def failed_groups(pool: Pool, nodes: dict[str, Finding], rules: Rules) -> dict[str, Finding]:
    """Racks, switches or rails of which nearly all nodes are faulty while most others are not: one fault, not many."""
    members: dict[str, list[str]] = defaultdict(list)
    for node in pool.everyone:
        if node in pool.groups:
            members[pool.groups[node]].append(node)
    faulty = {node for node, finding in nodes.items() if finding.verdict is Verdict.FAULTY}
    found = {}
    for group, inside in members.items():
        hit = [node for node in inside if node in faulty]
        outside = len(pool.everyone) - len(inside)
        if len(inside) >= 3 and len(hit) >= rules.group_share * len(inside) and len(faulty) - len(hit) < max(1, outside) / 2:
            found[group] = Finding(
                Verdict.FAULTY, f"{len(hit)} of its {len(inside)} nodes fail, {len(faulty) - len(hit)} of {outside} elsewhere"
            )
    return found
