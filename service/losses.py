"""Nodes of a job that are lost: a lease that ran out, and a second witness to it (law 9). Nodes that are cut off: their leases
are renewed, and they and the job's leader say of one another that they cannot be reached."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from detectors.lease import LeaseReview, NodeLoss, Witness, WitnessKind, judge_loss
from service.store.incidents import Failure

__all__ = ["Cut", "awaits_leases", "cuts_of", "failures_of", "losses_of"]

# Whoever looks at the leases four times a second and has not for this long is not waited for.
REVIEW_SECONDS = 5.0


def failures_of(session: Session, job: str, generation: int) -> Sequence[Failure]:
    """What was reported of this generation's failure."""
    return session.scalars(select(Failure).where(Failure.job == job, Failure.generation == generation)).all()


def losses_of(session: Session, job: str, generation: int, nodes: Sequence[str], leases: LeaseReview) -> tuple[NodeLoss, ...]:
    """Those of `nodes` that are lost, by the last look at all leases and what was reported of this generation.

    Where no lease is held any more the service suspects itself, and nobody is lost.
    """
    silent = {silence.node: silence for silence in leases.silent}
    if len(silent) == len(leases.renewed_at):
        return ()
    witnesses = [
        witness
        for failure in failures_of(session, job, generation)
        for witness in witnesses_in(failure, nodes)
        if witness.source not in silent
    ]
    found = (judge_loss(silent[node], witnesses) for node in nodes if node in silent)
    return tuple(loss for loss in found if loss is not None)


@dataclass(frozen=True, slots=True)
class Cut:
    """A job's leader and another node of it that do not reach one another, though both are heard here."""

    leader: str
    node: str
    by_leader: str
    by_node: str

    @property
    def why(self) -> str:
        reasons = f"{self.leader}: {self.by_leader}; {self.node}: {self.by_node}"
        return f"{self.leader} and {self.node} do not reach one another, though both renew their leases ({reasons})"


def cuts_of(session: Session, job: str, generation: int, nodes: Sequence[str], leases: LeaseReview) -> tuple[Cut, ...]:
    """Where the first of `nodes`, which leads, and others of them say of one another that they cannot be reached, and both have
    renewed their leases since: the network between them is to blame, and none of them is lost."""
    told: dict[tuple[str, str], str] = {}
    for failure in failures_of(session, job, generation):
        for item in failure.report.get("unreachable") or ():
            node = str(item["node"])
            if leases.renewed_at.get(node, -math.inf) > failure.reported_at:
                told[str(failure.report.get("told_by")), node] = str(item.get("why") or "it does not answer")
    silent = {silence.node for silence in (*leases.silent, *leases.unjudged)}
    heard = [node for node in nodes if node not in silent]
    return tuple(
        Cut(leader, node, told[leader, node], told[node, leader])
        for leader, node in ((nodes[0], node) for node in heard)
        if (leader, node) in told and (node, leader) in told and leader in heard
    )


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


def awaits_leases(session: Session, job: str, generation: int, leases: LeaseReview, is_known: bool, now: float) -> bool:
    """Whether a node that others cannot reach may still turn out to be lost: its lease neither ran out nor was renewed since.

    That is settled within a lease's time to live, and then one decision is made instead of two. `is_known`: False after the
    service's own start, when a lease that ran out says nothing yet. A review from before the failure need not know the lease at
    all: the next one is waited for, as long as there may be one.
    """
    settled = {silence.node for silence in (*leases.silent, *leases.unjudged)} if is_known else set()
    for failure in failures_of(session, job, generation):
        told = {str(item["node"]) for item in failure.report.get("unreachable") or ()}
        if told and leases.looked_at < failure.reported_at <= now <= failure.reported_at + REVIEW_SECONDS:
            return True
        if any(leases.renewed_at.get(node, math.inf) <= failure.reported_at for node in told - settled):
            return True
    return False
