"""Lost ranks that are started anew beside those that go on, to be taken in once they are ready: nobody waits for their start.

For ranks whose going on has a price: the sooner they are all there again, the less of it is paid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from node.care_states import Care
from node.crew import Crew
from node.formation import Formation
from node.keeper_client import KeeperError
from node.local_ranks import LocalRanks
from node.membership import Membership
from node.reforming import Marks

__all__ = ["Rejoining", "RejoiningRanks"]


@dataclass(slots=True)
class Rejoining:
    """What is under way of it. `started`: by rank, the generation in which it was started anew the last time; `ending`: ranks
    have come to the end of their work, so that nobody is missed any more."""

    started: dict[int, int] = field(default_factory=dict)
    ending: bool = False

    def to_start(self, care: Care, formation: Formation, marks: Marks, present: Collection[str]) -> Mapping[str, frozenset[int]]:
        """Lost ranks to start now, by their node; `present`: the nodes whose agents answer.

        Only while all that is left is at work, and each rank once in a generation: one that ends again is no use.
        """
        at_work = care.running and care.running <= marks.priced and not marks.waiting_above(care.generation) & care.running
        if not at_work or care.interrupted or self.ending:
            return {}
        found: dict[str, frozenset[int]] = {}
        for member in formation.members:
            if member.node not in present or member.node in care.barred:
                continue
            place = formation.place(member.node)
            lost = frozenset(range(place.first, place.first + place.ranks)) - care.running
            fresh = frozenset(rank for rank in lost if rank not in self.started)
            if fresh:
                found[member.node] = fresh
                self.started.update(dict.fromkeys(fresh, care.generation))
        return found

    def ready(self, care: Care, marks: Marks) -> frozenset[int]:
        """Those that were started and have come so far that they can be taken in."""
        return (frozenset(self.started) - care.running) & marks.priced

    def settle(self, care: Care) -> None:
        """Forget those that were taken in, and those that did not come before the next generation."""
        self.ending = len(care.running) < care.ranks and (self.ending or any(item.code == 0 for item in care.exits))
        self.started = {
            rank: generation
            for rank, generation in self.started.items()
            if rank not in care.running and generation == care.generation
        }


class RejoiningRanks:
    """The same, carried out on this node and, through the crew, on others. `crew` None: the job is on one node."""

    def __init__(self, local: LocalRanks, crew: Crew | None, node: str, say: Callable[[str], None]) -> None:
        self._local = local
        self._crew = crew
        self._node = node
        self._say = say
        self._under_way = Rejoining()

    def nodes(self, formation: Formation | None) -> frozenset[str]:
        """Where ranks are started anew: nobody is restarted for these nodes."""
        return frozenset(formation.node_of(rank) for rank in self._under_way.started) if formation is not None else frozenset()

    def look(self, care: Care, formation: Formation | None, membership: Membership) -> frozenset[int]:
        """Start lost ranks anew where their node is there; those that are ready to be taken in."""
        meeting = self._local.group.placement.meeting
        if formation is None or not meeting.served:
            return frozenset()
        self._under_way.settle(care)
        marks = membership.marks(care)
        present = {self._node, *(self._crew.present() if self._crew is not None else ())}
        for node, ranks in self._under_way.to_start(care, formation, marks, present).items():
            self._say(f"ranks {sorted(ranks)} on {node} are started anew, to be taken in")
            if node == self._node:
                try:
                    self._local.rejoin(care.generation, ranks, formation.place(node), meeting)
                except KeeperError as problem:
                    self._say(f"they cannot be started: {problem}")
            elif self._crew is not None:
                self._crew.rejoin(node, formation, meeting, ranks)
        return self._under_way.ready(care, marks)
