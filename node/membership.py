"""Who is left of a job's group, as the agent that leads it knows: the marks of all nodes, and the nodes that do not answer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from detectors.supervisor import RankExit
from node.care import ADAPT
from node.care_states import Care, Command, CommandArrived, Peers
from node.crew import Crew
from node.formation import Formation, NodeBounds
from node.local_ranks import LocalRanks
from node.reforming import Marks, Patience

__all__ = ["Membership", "hindrance_of", "leads_after"]

# A node that goes on under a new leader finds it within this time, or is started anew.
GATHER_SECONDS = 5.0
# One operation of a pipeline lasts no longer than this.
LEAVE_SECONDS = 30.0


class Membership:
    """`crew` None: the job is on one node."""

    def __init__(self, local: LocalRanks, crew: Crew | None, bounds: NodeBounds) -> None:
        self._local = local
        self._crew = crew
        self._bounds = bounds
        self._patience = Patience()
        self._asked: dict[int, float] = {}

    def marks(self, care: Care) -> Marks:
        own = self._local.marks(care.running)
        return own if self._crew is None else own | self._crew.marks()

    def alone(self, formation: Formation | None) -> bool:
        """Whether enough nodes answer to go on without being told to."""
        nodes = formation.nodes if formation is not None else ()
        return not nodes or self._bounds.allow(len(set(nodes) - self._gone()), len(nodes))

    def _gone(self) -> frozenset[str]:
        return frozenset(item.node for item in self._crew.gone()) if self._crew is not None else frozenset()

    def look(self, care: Care, formation: Formation | None, now: float) -> Peers | None:
        """Ranks that wait for a new group though nobody has died, and because of whom."""
        out_of_reach = ranks_on(formation, self._gone()) & care.running
        stuck = self._patience.judge(care.running, self.marks(care), care.generation, out_of_reach, now)
        if stuck is None:
            return None
        if not stuck.unreachable or formation is None:
            return Peers(stuck.lost, stuck.why)
        ends = tuple(RankExit(rank, care.generation, None, None, time.time(), error=stuck.why) for rank in sorted(stuck.lost))
        return Peers(frozenset(), stuck.why, ends)

    def settle(self, event: CommandArrived, care: Care, formation: Formation | None, now: float) -> CommandArrived | None:
        """The command, and whether the ranks go on in their processes for it or something hinders them; None while nodes that it
        names may still come.

        That takes the named nodes to be those whose ranks wait for a new group. An agent that has only just begun to lead knows
        of its own ranks alone: the others look for it. Ranks that are told to go on in their processes and not otherwise are
        waited for: they leave their group when they come to the next message of a lost one.
        """
        named = event.command.args.get("nodes") or ()
        hindrance = hindrance_of(event.command, formation)
        if hindrance is not None:
            return replace(event, hindrance=hindrance)
        if formation is None or not care.running or not set(named) <= set(formation.nodes):
            return event
        if care.running - ranks_on(formation, named):
            return event
        adapts = event.command.args.get("directive") == ADAPT
        if not adapts and not all(care.running & ranks_on(formation, (node,)) for node in named):
            return event
        waiting = self.marks(care).waiting_above(care.generation)
        if care.running <= waiting:
            return replace(event, in_place=True)
        ours = care.running & self._local.ranks
        since = self._asked.setdefault(event.command.id, now)
        patient = adapts or (self._crew is not None and bool(ours) and ours <= waiting)
        return None if patient and now - since < (LEAVE_SECONDS if adapts else GATHER_SECONDS) else event


def hindrance_of(command: Command, formation: Formation | None) -> str | None:
    """Why those that a command wants to go on may not (`Formation.hindrance`)."""
    named = command.args.get("nodes") or ()
    if formation is None or not named:
        return None
    return formation.hindrance(named, command.args.get("off") or ())


def leads_after(formation: Formation, own: str, care: Care, command: Command | None) -> int | None:
    """The generation of node `own` where it may lead nodes that stood in `formation`, newer than all that it knew of; None where
    it may not.

    It may by a `command` of after that formation, and at its own start where it led that one and has lost what it kept of it.
    """
    if command is not None:
        knows = command.generation > formation.generation and hindrance_of(command, formation) is None
        return care.generation if knows else None
    if care.formed or formation.leader.node != own:
        return None
    return max(care.generation, formation.generation + 1)


def ranks_on(formation: Formation | None, nodes: Iterable[str]) -> frozenset[int]:
    return frozenset(rank for node in nodes for rank in (formation.ranks_of(node) if formation is not None else ()))
