"""What a node tells of a failure in the place of the leader, who is gone, and how it leads when it is told to. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from detectors.supervisor import RankExit
from node.care_states import Care, Command, Phase
from node.crew import Gone
from node.formation import Formation
from node.job_state import JobState
from node.rank_group import Launch
from node.reforming import Marks
from node.reports import failure_document

__all__ = ["leaderless_document", "left_alone", "promoted"]


def left_alone(care: Care, formation: Formation | None, gone: Gone, marks: Marks) -> tuple[RankExit, ...]:
    """Ranks of this node that failed; where none did and ours wait for a new group, those of the leader's node."""
    failed = tuple(item for item in care.exits if item.failed)
    if failed or formation is None or not marks.waiting_above(care.generation) & care.running:
        return failed
    why = f"node {gone.node} does not answer, and its peers wait for it"
    ranks = formation.ranks_of(gone.node)
    return tuple(RankExit(rank, care.generation, None, None, time.time(), error=why) for rank in ranks)


def leaderless_document(
    launch: Launch,
    formation: Formation | None,
    care: Care,
    failed: Sequence[RankExit],
    beat: Mapping[str, Any],
    gone: Gone,
) -> dict[str, Any]:
    """The failure report, under a key of this node. `beat`: what the leader would have been told."""

    def node_of(rank: int | None) -> str:
        return launch.node if formation is None or rank is None else formation.node_of(rank)

    unreachable = [{"node": gone.node, "since": gone.since, "why": gone.why}]
    document = failure_document(launch.job, launch.node, node_of, care, failed, beat["step"], beat["checkpointed"], unreachable)
    return {**document, "idempotency_key": f"{document['idempotency_key']}:{launch.node}"}


def promoted(state: JobState, own: frozenset[int], command: Command) -> JobState:
    """The job as its new leader knows it: ranks of the nodes that go on, and those of the others as fenced off. `own`: the ranks
    that were started on this node."""
    care, now = state.care, time.monotonic()
    formation, nodes = state.formation, command.args.get("nodes") or ()
    named = frozenset(rank for node in nodes for rank in (formation.ranks_of(node) if formation is not None else ()))
    # What became of the ranks of the other nodes that go on, their agents tell when they come.
    running = care.running | (named - own)
    others = frozenset(range(care.ranks)) - own - running
    fenced = tuple(RankExit(rank, care.generation, None, None, time.time(), by_us=True) for rank in sorted(others))
    care = replace(
        care,
        phase=Phase.FAILED,
        running=running,
        exits=(*care.exits, *fenced),
        failed_at=now,
        last_exit_at=now,
        posted=True,
        accepted_at=now,
        heard_at=now,
        why="the leader is lost",
    )
    return replace(state, care=care, leads=True)
