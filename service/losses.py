"""Nodes of a job that are lost: a lease that ran out, and a second witness to it (law 9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from detectors.lease import NodeLoss, Silence, Witness, WitnessKind, judge_loss
from service.store.incidents import Failure
from service.store.jobs import Node

__all__ = ["awaits_leases", "losses_of"]


def failures_of(session: Session, job: str, generation: int) -> Sequence[Failure]:
    return session.scalars(select(Failure).where(Failure.job == job, Failure.generation == generation)).all()


def losses_of(session: Session, job: str, generation: int, nodes: Sequence[str], now: float) -> tuple[NodeLoss, ...]:
    """Those of `nodes` that are lost, by what was reported of this generation.

    When more than max(3, 5 %) of all leases are silent at once, or all of them, the service suspects itself and holds none lost.
    """
    leases = session.scalars(select(Node).where(Node.lease_until.is_not(None))).all()
    silent = {node.id: silence_of(node, now) for node in leases if node.lease_until is not None and node.lease_until <= now}
    if len(silent) > max(3, 0.05 * len(leases)) or len(silent) == len(leases):
        return ()
    witnesses = [
        witness
        for failure in failures_of(session, job, generation)
        for witness in witnesses_in(failure, nodes)
        if witness.source not in silent
    ]
    found = (judge_loss(silent[node], witnesses) for node in nodes if node in silent)
    return tuple(loss for loss in found if loss is not None)


def silence_of(node: Node, now: float) -> Silence:
    since = node.lease_until or now
    age, ttl = now - node.seen_at, since - node.seen_at
    return Silence(node.id, since, age, f"{node.id} has not renewed its lease for {age:.1f} s (time to live {ttl:.2g} s)")


def witnesses_in(failure: Failure, nodes: Sequence[str]) -> Iterator[Witness]:
    """What one failure report says of nodes other than those whose ranks it is about.

    Ranks that failed elsewhere speak against a node only where nobody asked whether its agent can be reached: every failure
    spreads to the ranks of all nodes.
    """
    failed = [str(rank["node"]) for rank in failure.report.get("failed") or () if rank.get("node")]
    if failure.report.get("told_by"):
        # Whose own ranks wait for those of a lost node: none of them failed.
        failed.insert(0, str(failure.report["told_by"]))
    told = failure.report.get("unreachable")
    named = None if told is None else {str(item["node"]) for item in told}
    for source in dict.fromkeys(failed):
        for node in nodes:
            if named is not None and node in named:
                yield Witness(WitnessKind.UNREACHABLE, node, source, failure.reported_at)
            elif named is None and node != source:
                yield Witness(WitnessKind.FAILED_COLLECTIVE, node, source, failure.reported_at)


def awaits_leases(session: Session, job: str, generation: int, now: float, known_from: float) -> bool:
    """Whether a node that others cannot reach may still turn out to be lost: its lease neither ran out nor was renewed since.

    That is settled within a lease's time to live, and then one decision is made instead of two. `known_from`: before that, after
    the service's own start, a lease that ran out says nothing.
    """
    for failure in failures_of(session, job, generation):
        for item in failure.report.get("unreachable") or ():
            node = session.get(Node, str(item["node"]))
            if node is None or node.lease_until is None or node.seen_at > failure.reported_at:
                continue
            if now < max(node.lease_until, known_from):
                return True
    return False
