"""The fault domain: where the fault sits, which is seldom where it was reported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from rules.diagnosis import FaultDomain
from rules.ranking.candidates import Candidate
from rules.ranking.observation import Observation

__all__ = ["fault_domain", "ranks_by_node"]

# Reported by the healthy side: the printing rank and node are not the suspects.
REPORTED_BY_OTHERS = frozenset(
    (
        "collective_mismatch",
        "coordination_heartbeat_timeout",
        "nccl_bootstrap_unreachable",
        "nccl_timeout_unattributed",
        "node_failure",
        "peer_connection_refused",
        "rdma_path_unreachable",
        "rdma_retry_exceeded",
        "remote_peer_lost",
        "rendezvous_store_unreachable",
        "checkpoint_save_stall",
        "rank0_preprocessing_timeout",
    )
)
# Each attribute by the captures that name it.
OTHER = (("peer", "peer {}"), ("path", "path {}"), ("port", "port {}"), ("service", "{}"))


def only(items: Sequence[Observation], value_of: Callable[[Observation], str | None]) -> str | None:
    """The values that the items name, in order, where they are few; more than four distinct ones locate nothing.

    In a burst of equal reports the earliest names the origin.
    """
    naming = [(item, value) for item in items if (value := value_of(item))]
    times = [item.line.time for item, _ in naming]
    if times and None not in times:
        first = min(time for time in times if time is not None)
        naming = [(item, value) for item, value in naming if item.line.time == first]
    values = dict.fromkeys(value for _, value in naming)
    return ", ".join(values) if 0 < len(values) <= 4 else None


# The ranks of one node; more than this many names say no more than the node itself.
MOST_RANKS = 8


def ranks_by_node(observations: Sequence[Observation]) -> Mapping[str, frozenset[str]]:
    """Which ranks were seen to run on which node: by lines that bear both, and by launchers that name both."""
    found: dict[str, set[str]] = defaultdict(set)
    for item in observations:
        node = item.capture("node") or item.line.node
        rank = item.capture("rank") or (None if item.rank is None else str(item.rank))
        if node and rank and rank.isdecimal():
            found[node].add(rank)
    return {node: frozenset(ranks) for node, ranks in found.items()}


def fault_domain(candidate: Candidate, places: Mapping[str, frozenset[str]]) -> FaultDomain:
    """Where the fault of `candidate` sits, as far as its lines say.

    Captured names win over who printed the line; the printing rank and node count only for reasons that a process reports of
    itself. The peer of a network message is the suspect. What a node's own log says is joined to the ranks that ran there
    (`places`, as `ranks_by_node` gives them).
    """
    items = candidate.items
    concluded = candidate.inference.domain if candidate.inference else FaultDomain()
    by_others = candidate.reason in REPORTED_BY_OTHERS

    def captured(name: str) -> str | None:
        return only(items, lambda item: item.capture(name))

    rank = concluded.rank or captured("rank")
    if rank is None and (local := captured("local_rank")):
        rank = f"local rank {local}"
    if rank is None and not by_others:
        rank = only(items, lambda item: None if item.rank is None else str(item.rank))
    node = concluded.node or captured("node")
    if node is None and not by_others:
        node = only(items, lambda item: item.line.node)
    if rank is None and node is not None and 0 < len(ranks := places.get(node, frozenset())) <= MOST_RANKS:
        rank = ", ".join(sorted(ranks, key=int))
    other = concluded.other or next((form.format(value) for name, form in OTHER if (value := captured(name))), None)
    return FaultDomain(
        node=node, gpu=concluded.gpu or captured("gpu"), rank=rank, link=concluded.link or captured("link"), other=other
    )
