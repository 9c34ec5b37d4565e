"""What a node tells of a failure in the place of the leader, who is gone, and how it leads when it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from detectors.supervisor import RankExit, first_failure
from node.care_states import Care, Command, CommandArrived, Noticed, Phase, PostNotice
from node.crew import Gone
from node.formation import Formation
from node.job_state import JobState
from node.link import ServiceLink
from node.local_ranks import LocalRanks
from node.rank_group import Launch
from node.reforming import Marks
from node.reports import failure_document, notice_document

__all__ = ["LeaderlessReports", "Promotion", "left_alone", "promoted", "retired"]

# Exits that follow the first one belong to the same report.
SETTLE_SECONDS = 0.3


def left_alone(care: Care, formation: Formation | None, gone: Gone, marks: Marks) -> tuple[RankExit, ...]:
    """Ranks of this node that failed; where none did and ours wait for a new group, those of the leader's node."""
    failed = tuple(item for item in care.exits if item.failed)
    if failed or formation is None or not marks.waiting_above(care.generation) & care.running:
        return failed
    why = f"node {gone.node} does not answer, and its peers wait for it"
    ranks = formation.ranks_of(gone.node)
    return tuple(RankExit(rank, care.generation, None, None, time.time(), error=why) for rank in ranks)


@dataclass(frozen=True, slots=True)
class Promotion:
    """This node is to lead from now on, and `command` says in what formation."""

    state: JobState
    command: CommandArrived


class LeaderlessReports:
    """What is reported in the place of a leader that is gone, each thing once in a generation.

    `beat`: what the leader would have been told.
    """

    def __init__(
        self, launch: Launch, local: LocalRanks, beat: Callable[[], Mapping[str, Any]], say: Callable[[str], None]
    ) -> None:
        self._launch = launch
        self._local = local
        self._beat = beat
        self._say = say
        self._told: set[tuple[int, str]] = set()
        self._failed_at: dict[int, float] = {}

    def notice(self, state: JobState, notice: Noticed, gone: Gone, link: ServiceLink) -> None:
        """Of ranks that run but get nowhere."""
        if self._is_first(state.care, notice.kind):
            told = PostNotice(notice.rank, notice.why, notice.kind, notice.bad_since)
            node_of, (step, saved) = self._node_of(state), self._reached()
            own = self._launch.node
            document = notice_document(self._launch.job, own, node_of, state.care, told, step, saved, unreachable(gone))
            self._report(document, state.care, notice.why, link)

    def failure(self, state: JobState, marks: Marks, gone: Gone, link: ServiceLink, now: float) -> None:
        """Where ranks wait for those of the leader's node, that is the failure. Called again until it was reported."""
        care = replace(state.care, elastic=marks.elastic)
        failed = left_alone(care, state.formation, gone, marks)
        if not failed or now - self._failed_at.setdefault(care.generation, now) < SETTLE_SECONDS:
            return
        if self._is_first(care, "failure"):
            first = first_failure(failed)
            node_of, (step, saved) = self._node_of(state), self._reached()
            own = self._launch.node
            document = failure_document(self._launch.job, own, node_of, care, failed, step, saved, unreachable(gone))
            self._report(document, care, f"the failure of rank {first.rank if first else '?'}", link)

    def _is_first(self, care: Care, what: str) -> bool:
        report = care.generation, what
        is_first = report not in self._told
        self._told.add(report)
        return is_first

    def _node_of(self, state: JobState) -> Callable[[int | None], str]:
        formation, own = state.formation, self._launch.node
        return lambda rank: own if formation is None or rank is None else formation.node_of(rank)

    def _reached(self) -> tuple[int | None, int | None]:
        beat = self._beat()
        return beat["step"], beat["checkpointed"]

    def _report(self, document: Mapping[str, Any], care: Care, what: str, link: ServiceLink) -> None:
        """Under a key of this node: the leader may yet tell the same, or that this node is the lost one."""
        self._say(f"reporting in the leader's place: {what}")
        self._local.flush(care.exits, care.generation)
        key = f"{document['idempotency_key']}:told by {self._launch.node}"
        link.report_failure({**document, "idempotency_key": key}, self._local.shipping.last_batch)


def unreachable(gone: Gone) -> list[dict[str, Any]]:
    return [{"node": gone.node, "since": gone.since, "why": gone.why}]


def retired(state: JobState) -> JobState:
    """The job as an agent follows it that led it before, and has ended what ran of it here."""
    care = state.care
    generation = care.generation if care.next_generation is None else care.next_generation
    care = Care(Phase.STARTING, care.ranks, generation, max_restarts=care.max_restarts, restarts=care.restarts, done=care.done)
    return replace(state, care=care, leads=False)


def promoted(state: JobState, own: frozenset[int], command: Command) -> JobState:
    """The job as its new leader knows it: ranks of the nodes that go on, and those of the others as fenced off. `own`: the ranks
    that were started on this node."""
    care, now = state.care, time.monotonic()
    formation, nodes = state.formation, command.args.get("nodes") or ()
    # What became of the ranks of the other nodes that go on, their agents tell when they come. This one is named first.
    elsewhere = frozenset(rank for node in nodes[1:] for rank in (formation.ranks_of(node) if formation is not None else ()))
    running = care.running | elsewhere
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
