"""What else could be done, priced side by side: the weighted achieved FLOP/s (WAF) of each over the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from recovery.planning.cluster import ClusterState, TaskState
from recovery.planning.tasks import running_seconds

__all__ = ["Adapted", "Adapter", "Alternative", "AlternativeKind", "Segment", "priced_alternatives"]


class AlternativeKind(StrEnum):
    """Of two that bring the same, the one that stands first here is taken."""

    STAY = "stay"
    WAIT_FOR_REPAIR = "wait_for_repair"
    PLAN = "plan"
    TAKE_SPARE = "take_spare"
    ADAPT_PIPELINE = "adapt_pipeline"
    RESTART_IN_PLACE = "restart_in_place"
    SHRINK = "shrink"
    TAKE_FROM_OTHER = "take_from_other"
    RESTART_ELSEWHERE = "restart_elsewhere"


@dataclass(frozen=True, slots=True)
class Segment:
    """So many seconds at so much WAF."""

    seconds: float
    waf: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """`targets`: nodes for each task. `against`: why it cannot or may not be done, None where it can.

    `accumulated`: weighted FLOP over the horizon; `moves_others`: tasks that were not hit and change.
    """

    kind: AlternativeKind
    says: str
    targets: Mapping[str, int]
    segments: tuple[Segment, ...] = ()
    moves_others: tuple[str, ...] = ()
    against: str | None = None

    @property
    def accumulated(self) -> float:
        return sum(segment.seconds * segment.waf for segment in self.segments)

    @property
    def mean_waf(self) -> float:
        seconds = sum(segment.seconds for segment in self.segments)
        return self.accumulated / seconds if seconds else 0.0


@dataclass(frozen=True, slots=True)
class Adapted:
    """A job that goes on without the lost node by giving its work to data-parallel peers: FLOP/s then, and seconds until then.

    `joining_seconds`: to take the node back, None where that takes a transition like any other.
    """

    throughput: float
    transition_seconds: float
    reason: str = ""
    joining_seconds: float | None = None


# Of the task that was hit, as it was before, and how many of its nodes are lost; None where its pipelines cannot be adapted.
Adapter = Callable[[TaskState, int], Adapted | None]


@dataclass(frozen=True, slots=True)
class _Change:
    """What differs from an ordinary transition of a task: seconds there and back, and what it is worth meanwhile."""

    there: float
    back: float | None = None
    worth: float | None = None


@dataclass(frozen=True, slots=True)
class _Pricing:
    """One state after an event, and the time over which everything is priced."""

    state: ClusterState
    horizon: float

    def segments(self, targets: Mapping[str, int], changes: Mapping[str, _Change]) -> tuple[Segment, ...]:
        """WAF over time. Changed and hit tasks are away for their transition; when a lost node is back, those that differ from
        what they were return to it where that brings more."""
        stay = self._segments(targets, changes, returns=False)
        if not self.state.lost or self.state.repair_seconds >= self.horizon:
            return stay
        back = self._segments(targets, changes, returns=True)
        return max(stay, back, key=lambda found: sum(segment.seconds * segment.waf for segment in found))

    def _segments(self, targets: Mapping[str, int], changes: Mapping[str, _Change], returns: bool) -> tuple[Segment, ...]:
        lines = [self._line(task, targets.get(task.name, 0), changes.get(task.name), returns) for task in self.state.placed]
        cuts = sorted({0.0, self.horizon, *(at for line in lines for at, _ in line if at < self.horizon)})
        found: list[Segment] = []
        for start, end in pairwise(cuts):
            waf = sum(next(value for at, value in reversed(line) if at <= start) for line in lines)
            if found and found[-1].waf == waf:
                found[-1] = Segment(found[-1].seconds + end - start, waf)
            else:
                found.append(Segment(end - start, waf))
        return tuple(found)

    def _line(self, task: TaskState, target: int, change: _Change | None, returns: bool) -> list[tuple[float, float]]:
        """What one task is worth from when on."""
        change = change or _Change(task.transition_seconds)
        transition = min(change.there, self.horizon)
        present = len(task.nodes)
        value = task.worth(target) if change.worth is None else change.worth
        line = [(0.0, value)] if target == present and not task.hit else [(0.0, 0.0), (transition, value)]
        if returns and (target != present or change.worth is not None):
            again = max(self.state.repair_seconds, transition)
            back = task.transition_seconds if change.back is None else change.back
            line += [(again, 0.0), (again + back, task.worth(present))]
        return line


def priced_alternatives(
    state: ClusterState, planned: Mapping[str, int], planned_says: str, adapter: Adapter | None = None
) -> tuple[Alternative, ...]:
    """Every alternative after an event, `state` being that after it and `planned` the planner's allocation; the best first.

    They are priced over the expected time until the next reconfiguration. Those that cannot be done stand last, with the reason.
    """
    pricing = _Pricing(state, running_seconds(state.units, state.rates))
    present = {task.name: len(task.nodes) for task in state.placed}
    found = [_made(pricing, AlternativeKind.PLAN, planned_says, planned)]
    hit = [task for task in state.placed if task.hit]
    if not hit:
        found.append(_made(pricing, AlternativeKind.STAY, "everything stays as it is", present))
    for task in hit:
        # Where several were hit, what is done about one of them leaves the others waiting; the plan alone minds all.
        waiting = {other.name: 0 for other in hit if other is not task}
        found += _of_hit(pricing, task, present | waiting, adapter)
    order = list(AlternativeKind)
    return tuple(sorted(found, key=lambda item: (item.against is not None, -item.accumulated, order.index(item.kind))))


def _made(
    pricing: _Pricing,
    kind: AlternativeKind,
    says: str,
    targets: Mapping[str, int],
    changes: Mapping[str, _Change] | None = None,
) -> Alternative:
    others = [
        task for task in pricing.state.placed if not task.hit and task.nodes and targets.get(task.name, 0) != len(task.nodes)
    ]
    held = next((f"{task.name}: {task.held}" for task in others if task.held is not None), None)
    small = next((task.name for task in others if targets.get(task.name, 0) < task.least), None)
    against = held or (None if small is None else f"{small} would be below its minimum")
    segments = pricing.segments(targets, changes or {})
    return Alternative(kind, says, targets, segments, tuple(task.name for task in others), against)


def _of_hit(pricing: _Pricing, task: TaskState, present: Mapping[str, int], adapter: Adapter | None) -> list[Alternative]:
    state = pricing.state
    lost = sum(not state.sites[node].usable for node in task.nodes)
    size, left = len(task.nodes), len(task.nodes) - lost

    def no(kind: AlternativeKind, says: str, why: str) -> Alternative:
        return Alternative(kind, says, present, against=why)

    spares, idle = state.free_spares, state.idle
    found = []
    says = f"{task.name} goes on with a spare in the place of each lost node"
    if len(spares) >= lost:
        found.append(_made(pricing, AlternativeKind.TAKE_SPARE, says, present))
    else:
        found.append(no(AlternativeKind.TAKE_SPARE, says, f"{len(spares)} spares are free, {lost} are needed"))
    smaller = max(range(left + 1), key=task.worth)
    says = f"{task.name} goes on with {smaller} of the {left} nodes that it has left"
    if task.worth(smaller) > 0:
        found.append(_made(pricing, AlternativeKind.SHRINK, says, {**present, task.name: smaller}))
    else:
        found.append(no(AlternativeKind.SHRINK, f"{task.name} shrinks", f"no size up to {left} nodes is feasible for it"))
    found.append(_from_other(pricing, task, present, lost))
    says = f"{task.name} is started anew from its stored checkpoint on {size} other nodes"
    if len(idle) >= size:
        found.append(_made(pricing, AlternativeKind.RESTART_ELSEWHERE, says, present, {task.name: _Change(task.restart_seconds)}))
    else:
        found.append(no(AlternativeKind.RESTART_ELSEWHERE, says, f"{len(idle)} nodes are idle, {size} are needed"))
    says = f"{task.name} waits until the node is repaired, about {state.repair_seconds / 3600:.0f} h"
    found.append(_made(pricing, AlternativeKind.WAIT_FOR_REPAIR, says, {**present, task.name: 0}))
    adapted = None if adapter is None else adapter(task, lost)
    if adapted is not None:
        how = f" ({adapted.reason}; goes on after about {adapted.transition_seconds:.0f} s)" if adapted.reason else ""
        says = f"{task.name} gives the work of the lost node to its data-parallel peers{how}"
        change = _Change(adapted.transition_seconds, adapted.joining_seconds, task.weight * adapted.throughput)
        found.append(_made(pricing, AlternativeKind.ADAPT_PIPELINE, says, {**present, task.name: left}, {task.name: change}))
    return found


def _from_other(pricing: _Pricing, task: TaskState, present: Mapping[str, int], lost: int) -> Alternative:
    givers = [
        _made(
            pricing,
            AlternativeKind.TAKE_FROM_OTHER,
            f"{task.name} gets {lost} of the nodes of {other.name}",
            {**present, other.name: len(other.nodes) - lost},
        )
        for other in pricing.state.placed
        if not other.hit and len(other.nodes) > lost and other.worth(len(other.nodes) - lost) > 0
    ]
    if not givers:
        says = f"{task.name} gets a node of another job"
        return Alternative(AlternativeKind.TAKE_FROM_OTHER, says, present, against="no other job can give one")
    return max(givers, key=lambda giver: (giver.against is None, giver.accumulated))
