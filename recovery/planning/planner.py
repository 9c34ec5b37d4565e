"""The allocation of a cluster that is worth most: exact dynamic programming over tasks, and the table of single events.

S(i,j) = max over k of S(i-1,j-k) + G(t_i,k), with S(0,.) = 0: workers may stay idle (Unicron, section 5.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from recovery.planning.maxplus import Sizes, Values, best_middle, best_split, convolve, undominated
from recovery.planning.tasks import (
    ClusterRates,
    Gains,
    PlanError,
    Task,
    all_gains,
    gains,
    gains_when_hit,
    running_seconds,
    when_hit,
)

__all__ = ["Allocation", "Event", "EventKind", "PlanTable", "allocate", "apply_event", "plan_table"]


@dataclass(frozen=True, slots=True)
class Allocation:
    """Units for each task, the objective reached (FLOP until the next reconfiguration) and the WAF (weighted FLOP/s)."""

    units: Mapping[str, int]
    objective: float
    waf: float
    idle: int


class EventKind(StrEnum):
    NODE_LOST = "node_lost"
    NODE_JOINED = "node_joined"
    TASK_FINISHED = "task_finished"
    TASK_LAUNCHED = "task_launched"


@dataclass(frozen=True, slots=True)
class Event:
    """One change of the cluster. `task` is the task that was hit (None: an idle unit), that ended, or that waits."""

    kind: EventKind
    task: str | None = None


def result_of(tasks: Sequence[Task], sizes: Sequence[int], objective: float, units: int) -> Allocation:
    waf = sum(map(Task.worth, tasks, sizes))
    return Allocation(dict(zip([task.name for task in tasks], sizes, strict=True)), objective, waf, units - sum(sizes))


def allocate(tasks: Sequence[Task], units: int, rates: ClusterRates) -> Allocation:
    """The best allocation of `units` to `tasks`. O(tasks * units^2).

    Raises PlanError on doubled names, negative units, or floors that leave no allocation.
    """
    if units < sum(task.present if task.pinned else task.floor for task in tasks):
        raise PlanError(f"{units} units cannot hold what the running tasks may not be taken below")
    if units < 0:
        raise PlanError("units must not be negative")
    if len({task.name for task in tasks}) != len(tasks):
        raise PlanError("task names must differ")
    # Every S(i,.) is non-decreasing, so the whole cluster is where the best value stands.
    gained = all_gains(tasks, units, running_seconds(units, rates))
    if len(tasks) == 1:
        size = int(np.argmax(gained[0]))
        return result_of(tasks, [size], float(gained[0][size]), units)
    return Programme.of(gained, units, [undominated(each) for each in gained]).plan(tasks, units)


def apply_event(
    tasks: Sequence[Task], units: int, event: Event, waiting: Sequence[Task] = (), spare: bool = False
) -> tuple[tuple[Task, ...], int]:
    """The tasks and units after `event`. `spare`: one stands ready, beyond `units`, in the place of a unit that a task loses.

    Raises PlanError where the event names a task that is not there or a unit that is not idle.
    """
    names = {task.name: task for task in tasks}
    match event.kind:
        case EventKind.NODE_LOST:
            if units < 1:
                raise PlanError("no unit is left to lose")
            if event.task is None:
                return tuple(tasks), units - 1
            if event.task not in names or names[event.task].present < 1:
                raise PlanError(f"task {event.task} has no unit to lose")
            left = units if spare else units - 1
            return tuple(when_hit(task) if task.name == event.task else task for task in tasks), left
        case EventKind.NODE_JOINED:
            return tuple(tasks), units + 1
        case EventKind.TASK_FINISHED:
            if event.task not in names:
                raise PlanError(f"no task {event.task} is running")
            return tuple(task for task in tasks if task.name != event.task), units
        case EventKind.TASK_LAUNCHED:
            new = next((task for task in waiting if task.name == event.task), None)
            if new is None:
                raise PlanError(f"no task {event.task} is waiting")
            return (*tasks, new), units


@dataclass(frozen=True, slots=True)
class PlanTable:
    """Plans for every single event, computed ahead; `stamp` names the state that they are for, and another one is refused."""

    stamp: str
    plans: Mapping[Event, Allocation]

    def look_up(self, event: Event, stamp: str) -> Allocation:
        """The plan for `event`. Raises PlanError where the table is stale or the event unknown."""
        if stamp != self.stamp:
            raise PlanError("the table is stale: the cluster changed since it was computed")
        try:
            return self.plans[event]
        except KeyError:
            raise PlanError(f"no plan for {event.kind} {event.task or ''}".rstrip()) from None


@dataclass(frozen=True, slots=True)
class Programme:
    """S(i,.) for i = 0..m over tasks in one order, with what each gains by size and the sizes that matter.

    `chosen` remembers the size of task i at a total: plans for different events soon share their way back.
    """

    values: list[Values]
    gains: list[Gains]
    kept: list[Sizes]
    chosen: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, gained: list[Gains], units: int, kept: list[Sizes]) -> Programme:
        values: list[Values] = [np.zeros(units + 1)]
        for each, sizes in zip(gained, kept, strict=True):
            values.append(convolve(values[-1], each, sizes))
        return cls(values, gained, kept)

    @classmethod
    def both_ways(cls, tasks: Sequence[Task], units: int, rates: ClusterRates) -> tuple[Programme, Programme]:
        """Over the tasks from first to last, and from last to first."""
        gained = all_gains(tasks, units, running_seconds(units, rates))
        kept = [undominated(each) for each in gained]
        return cls.of(gained, units, kept), cls.of(gained[::-1], units, kept[::-1])

    def sizes(self, count: int, units: int) -> list[int]:
        """The best sizes of the first `count` tasks on `units`."""
        sizes = [0] * count
        for index in range(count - 1, -1, -1):
            place = (index, units)
            if place not in self.chosen:
                _, self.chosen[place] = best_split(self.values[index], self.gains[index], self.kept[index], units)
            sizes[index] = self.chosen[place]
            units -= sizes[index]
        return sizes

    def plan(self, tasks: Sequence[Task], units: int) -> Allocation:
        return result_of(tasks, self.sizes(len(tasks), units), float(self.values[-1][units]), units)


def lost_plans(tasks: Sequence[Task], units: int, rates: ClusterRates) -> dict[Event, Allocation]:
    """A unit of each task lost, `units` being left. Each costs one row of a merge per size of the task that was hit."""
    before, after = Programme.both_ways(tasks, units, rates)
    running = running_seconds(units, rates)
    found = {}
    for index, task in enumerate(tasks):
        if task.present < 1:
            continue
        behind = len(tasks) - 1 - index
        hit = gains_when_hit(task, units, running)
        objective, size, rest = best_middle(before.values[index], hit, undominated(hit), after.values[behind], units)
        sizes = [*before.sizes(index, units - size - rest), size, *after.sizes(behind, rest)[::-1]]
        found[Event(EventKind.NODE_LOST, task.name)] = result_of(tasks, sizes, objective, units)
    return found


def ended_plans(tasks: Sequence[Task], units: int, rates: ClusterRates, waiting: Sequence[Task]) -> dict[Event, Allocation]:
    """Each task finished, each waiting one launched."""
    before, after = Programme.both_ways(tasks, units, rates)
    running = running_seconds(units, rates)
    every = np.arange(units + 1)
    found = {}
    for index, task in enumerate(tasks):
        behind = len(tasks) - 1 - index
        objective, rest = best_split(before.values[index], after.values[behind], every, units)
        sizes = [*before.sizes(index, units - rest), *after.sizes(behind, rest)[::-1]]
        others = [*tasks[:index], *tasks[index + 1 :]]
        found[Event(EventKind.TASK_FINISHED, task.name)] = result_of(others, sizes, objective, units)
    for new in waiting:
        gained = gains(new, units, running)
        objective, size = best_split(before.values[-1], gained, undominated(gained), units)
        sizes = [*before.sizes(len(tasks), units - size), size]
        found[Event(EventKind.TASK_LAUNCHED, new.name)] = result_of((*tasks, new), sizes, objective, units)
    return found


def plan_table(
    tasks: Sequence[Task], units: int, rates: ClusterRates, stamp: str, waiting: Sequence[Task] = (), spare: bool = False
) -> PlanTable:
    """Plans for: a unit of each task or an idle one lost, a unit joined, each task finished, each waiting task launched.

    Each equals planning from scratch after the event. Events of a kind share programmes over the tasks in both orders, so the
    table costs about six plans however many tasks there are: three for losses, one for a gain, two for ends and launches; one
    more where a unit is idle. `spare` is that of `apply_event`.
    """
    plans = ended_plans(tasks, units, rates, waiting)
    plans[Event(EventKind.NODE_JOINED)] = allocate(tasks, units + 1, rates)
    if units > 0:
        plans |= lost_plans(tasks, units if spare else units - 1, rates)
    if units > sum(task.present for task in tasks):
        plans[Event(EventKind.NODE_LOST)] = allocate(tasks, units - 1, rates)
    return PlanTable(stamp, plans)
