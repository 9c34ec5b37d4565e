"""The verdict on every node, and on links and groups at fault, with the probes that prove it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import comb

from recovery.localization.blame import Blamed
from recovery.localization.probes import Finding, Link, Localization, ProbeResult, Verdict, link_of, shortened
from recovery.localization.standing import Ledger, Standing

__all__ = ["judge"]


def judge(ledger: Ledger, clear_after: int = 12) -> Localization:
    """What the results prove.

    A node in a failed world that nobody explains is cleared by `clear_after` passed worlds. Where no two nodes passed together
    nobody is blamed; where over half of the nodes are faulty they are named, but none is to be isolated.
    """
    pool, results, standing = ledger.pool, tuple(ledger.results), Standing.of(ledger)
    nodes = found_alone(ledger, standing)
    if standing.bad and not ledger.passed:
        why = "no two nodes passed together: the network, or the probe itself, rather than one of them"
        for node in pool.everyone:
            nodes.setdefault(node, Finding(Verdict.UNDECIDED, why, tuple(ledger.worlds.get(node, ()))))
        return Localization(nodes, results=results)
    found_groups: dict[str, Finding] = {}
    links: dict[Link, Finding] = {}
    for blamed, verdict in (*((item, Verdict.FAULTY) for item in standing.failing.blamed), *slow_parts(standing)):
        finding = Finding(verdict, explain(blamed, verdict, standing.limit), blamed.failures)
        match blamed.part.kind:
            case "node":
                nodes.setdefault(blamed.part.names[0], finding)
            case "link":
                links.setdefault(link_of(*blamed.part.names), finding)
            case "group" | "uplink":
                found_groups.setdefault(blamed.part.names[0], finding)
    in_group = {node: group for node in pool.everyone for group in pool.groups.get(node, ()) if group in found_groups}
    unexplained = by_member((*standing.failing.unexplained, *standing.slowing.unexplained))
    proof = by_member(ledger.passed)
    for node in pool.everyone:
        if node not in nodes:
            nodes[node] = verdict_of(node, in_group.get(node), unexplained.get(node, ()), proof.get(node, ()), clear_after)
    faulty = sum(1 for finding in nodes.values() if finding.verdict is Verdict.FAULTY)
    caution = ""
    if 2 * faulty > len(pool.everyone):
        caution = f"{faulty} of {len(pool.everyone)} nodes fail: a cause that they share is likelier, so none is to be isolated"
    undecided = comb(len(pool.everyone), 2) - len(ledger.covered)
    return Localization(nodes, links, found_groups, results, caution, undecided)


def slow_parts(standing: Standing) -> tuple[tuple[Blamed, Verdict], ...]:
    return tuple((item, Verdict.SLOW) for item in standing.slowing.blamed)


def found_alone(ledger: Ledger, standing: Standing) -> dict[str, Finding]:
    """The verdicts on nodes that never entered a pair."""
    found = {}
    for node in standing.faulty_alone:
        failures = tuple(result for result in ledger.alone[node] if result.failed)
        what = f" ({failures[-1].error})" if failures[-1].error else ""
        found[node] = Finding(Verdict.FAULTY, f"failed alone {len(failures)} times, no other node involved{what}", failures)
    for node in standing.doubtful_alone:
        found[node] = Finding(Verdict.UNDECIDED, "failed once alone, and not again", tuple(ledger.alone[node]))
    for node in standing.silent:
        last = ledger.alone[node][-1]
        why = f"it could not be probed, which proves nothing: {last.error or last.outcome.value}"
        found[node] = Finding(Verdict.UNDECIDED, why, tuple(ledger.alone[node]))
    return found


def explain(blamed: Blamed, verdict: Verdict, limit: float) -> str:
    partners = sorted({node for world in blamed.failures for node in world.probe.members} - set(blamed.part.names))
    count, total = len(blamed.failures), len(blamed.failures) + blamed.passes
    what = "failed" if verdict is Verdict.FAULTY else f"took over {limit:.3g} s"
    match blamed.part.kind:
        case "node":
            return f"{what} in {count} of {total} worlds, with {len(partners)} different partners ({shortened(partners)})"
        case "link":
            return f"{what} in {count} of {total} tries; both ends pass with others"
        case "uplink":
            return f"{what} in {count} of {total} worlds that leave the group, while it works inside"
        case "group":
            return f"{what} in {count} of {total} worlds that touch the group"


def by_member(results: Sequence[ProbeResult]) -> Mapping[str, tuple[ProbeResult, ...]]:
    found: dict[str, list[ProbeResult]] = defaultdict(list)
    for result in results:
        for node in result.probe.members:
            found[node].append(result)
    return {node: tuple(mine) for node, mine in found.items()}


def verdict_of(
    node: str, group: str | None, unexplained: Sequence[ProbeResult], proof: Sequence[ProbeResult], clear_after: int
) -> Finding:
    if group is not None:
        return Finding(Verdict.UNDECIDED, f"its group {group} fails as one: nothing is proved against the node itself")
    if unexplained and len(proof) < clear_after:
        world = unexplained[0]
        names = " - ".join(world.probe.members)
        why = f"{names} {'failed' if world.failed else 'was slow'}, and nothing tells which part of it is at fault"
        return Finding(Verdict.UNDECIDED, why, (*unexplained, *proof))
    if proof:
        note = f"; {len(unexplained)} bad ones did not happen again" if unexplained else ""
        return Finding(Verdict.GOOD, f"passed {len(proof)} worlds{note}", tuple(proof))
    return Finding(Verdict.UNDECIDED, "no world with it passed, and none blames it", tuple(unexplained))
