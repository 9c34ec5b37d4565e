"""The nodes of a job as its leader gathers them: for the next generation, when one goes out of reach, when one comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from node.care_states import Respawn
from node.crew import Crew, Gone
from node.formation import Formation, Member, NodeBounds, choose_members
from node.monitors import RankReading
from node.waiting import Wait, missing

__all__ = ["JOIN_SECONDS", "Gathering", "reach_of"]

# As torchrun: one that the bounds allow waits for latecomers; one without enough nodes is given up in the end.
LAST_CALL_SECONDS = 30.0
JOIN_SECONDS = 600.0
# A node that came back waits for the next finished checkpoint, or this long where none is told of.
RETURN_SECONDS = 30.0


class Gathering:
    """`crew` None: the job is on this node (`own`) alone, which is always there."""

    def __init__(self, crew: Crew | None, own: Member, bounds: NodeBounds, say: Callable[[str], None]) -> None:
        self._crew = crew
        self._own = own
        self._bounds = bounds
        self._say = say
        self._since = 0.0
        self._wait = Wait()
        self._told: set[tuple[int, str]] = set()
        self._returning: dict[str, tuple[float, int | None]] = {}
        self.action: Respawn | None = None

    def begin(self, action: Respawn) -> None:
        self.action, self._since = action, time.monotonic()

    def raise_to(self, generation: int) -> None:
        """Nodes are looked for still, for a later one."""
        if self.action is not None:
            self.action = replace(self.action, generation=generation)

    @property
    def is_in_vain(self) -> bool:
        """Whether too few nodes came, for as long as is worth waiting."""
        return self.action is not None and time.monotonic() - self._since >= JOIN_SECONDS

    def members(self, last: Formation | None, barred: Collection[str]) -> tuple[Member, ...] | None:
        """Who carries the generation that is to begin; None while somebody is waited for. `last`: the formation before."""
        if self._crew is None or self.action is None:
            return (self._own,)
        present = {**self._crew.present(), self._own.node: self._own}
        what = missing(present, self.action.nodes, last, self._bounds)
        if self._wait.look(f"{what}, to form generation {self.action.generation}", time.monotonic()):
            self._say(f"waiting for {self._wait.said}")
        return choose_members(
            present,
            self._own.node,
            self._bounds,
            wanted=self.action.nodes,
            previous=last.nodes if last is not None else (),
            barred=barred,
            waited=time.monotonic() - self._since >= LAST_CALL_SECONDS,
        )

    @property
    def waits_for(self) -> str | None:
        """The nodes that are looked for, once that was said."""
        return self._wait.said if self.action is not None else None

    def gone(self) -> tuple[Gone, ...]:
        return self._crew.gone() if self._crew is not None else ()

    def report(self, formation: Formation | None) -> list[dict[str, Any]]:
        """The nodes out of reach, for a report that tells of them."""
        gone = self.gone()
        self._told |= {(formation.generation, item.node) for item in gone if formation is not None}
        return [{"node": item.node, "since": item.since, "why": item.why} for item in gone]

    def untold(self, formation: Formation | None) -> tuple[Gone, ...]:
        """Nodes that went out of reach since the failure of `formation` was reported."""
        if formation is None:
            return ()
        return tuple(item for item in self.gone() if (formation.generation, item.node) not in self._told)

    def returned(self, formation: Formation | None, saved: int | None, barred: Collection[str]) -> tuple[str, ...]:
        """Nodes to take in now: they wait, there is room, and a checkpoint has just been finished: little is done twice.

        `saved`: the step of the newest one.
        """
        if self._crew is None or formation is None or len(formation.nodes) >= self._bounds.most:
            return ()
        now, waiting = time.monotonic(), self._crew.waiting()
        candidates = [node for node in waiting if node not in barred]
        self._returning = {node: seen for node, seen in self._returning.items() if node in candidates}
        for node in candidates:
            since, before = self._returning.setdefault(node, (now, saved))
            if (saved is not None and saved != before) or now - since >= RETURN_SECONDS:
                self._returning.clear()
                return tuple(candidates)
        return ()


def reach_of(readings: Mapping[int, RankReading], crew: Crew | None) -> tuple[int | None, int | None]:
    """(the last step, the newest checkpoint that every rank has finished), as far as is known."""
    steps = [reading.step for reading in readings.values() if reading.step is not None]
    saved: list[int | None] = [None if it.progress is None else it.progress.checkpointed for it in readings.values()]
    if crew is not None:
        more, others = crew.steps()
        steps += more
        saved += others
    known = [step for step in saved if step is not None and step >= 0]
    return max(steps, default=None), min(known) if known and len(known) == len(saved) else None
