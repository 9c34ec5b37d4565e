"""The allocation of a cluster that is worth most: exact dynamic programming over tasks, and the table of single events.

S(i,j) = max over k of S(i-1,j-k) + G(t_i,k), with S(0,.) = 0: workers may stay idle (Unicron, section 5.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from recovery.planning.maxplus import best_at, convolve
from recovery.planning.tasks import ClusterRates, Gains, PlanError, Task, all_gains, running_seconds

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
    waf = sum(task.worth(size) for task, size in zip(tasks, sizes, strict=True))
    return Allocation({task.name: size for task, size in zip(tasks, sizes, strict=True)}, objective, waf, units - sum(sizes))


def allocate(tasks: Sequence[Task], units: int, rates: ClusterRates) -> Allocation:
    """The best allocation of `units` to `tasks`. Raises PlanError on doubled names or negative units. O(tasks * units^2)."""
    if units < 0:
        raise PlanError("units must not be negative")
    if len({task.name for task in tasks}) != len(tasks):
        raise PlanError("task names must differ")
    value: NDArray[np.float64] = np.zeros(units + 1)
    choices = []
    for gained in all_gains(tasks, units, running_seconds(units, rates)):
        value, choice = convolve(value, gained)
        choices.append(choice)
    # Every S(i,.) is non-decreasing, so the whole cluster is where the best value stands.
    sizes, left = [0] * len(tasks), units
    for index in range(len(tasks) - 1, -1, -1):
        sizes[index] = int(choices[index][left])
        left -= sizes[index]
    return result_of(tasks, sizes, float(value[units]), units)


def apply_event(tasks: Sequence[Task], units: int, event: Event, waiting: Sequence[Task] = ()) -> tuple[tuple[Task, ...], int]:
    """The tasks and units after `event`. Raises PlanError where it names a task that is not there or a unit that is not idle."""
    names = {task.name: task for task in tasks}
    match event.kind:
        case EventKind.NODE_LOST:
            if units < 1:
                raise PlanError("no unit is left to lose")
            if event.task is None:
                return tuple(tasks), units - 1
            if event.task not in names or names[event.task].present < 1:
                raise PlanError(f"task {event.task} has no unit to lose")
            return tuple(replace(task, hit=True) if task.name == event.task else task for task in tasks), units - 1
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


def forward(gains: Sequence[Gains], length: int) -> tuple[list[NDArray[np.float64]], list[NDArray[np.int32]]]:
    """S(i,.) for i = 0..m, and the choice at each step."""
    values: list[NDArray[np.float64]] = [np.zeros(length)]
    choices = []
    for gained in gains:
        value, choice = convolve(values[-1], gained)
        values.append(value)
        choices.append(choice)
    return values, choices


def trace(choices: Sequence[NDArray[np.int32]], left: int) -> list[int]:
    sizes = []
    for choice in reversed(choices):
        sizes.append(int(choice[left]))
        left -= sizes[-1]
    return sizes[::-1]


def leave_one_out(gains: Sequence[Gains], replaced: Mapping[int, Gains | None], units: int) -> dict[int, tuple[float, list[int]]]:
    """For each index in `replaced`, the best plan with that task's gains replaced (None: the task is gone)."""
    before, before_choices = forward(gains, units + 1)
    after, after_choices = forward(gains[::-1], units + 1)
    count, found = len(gains), {}
    for index, gained in replaced.items():
        left, right = before[index], after[count - 1 - index]
        if gained is None:
            objective, k = best_at(left, right, units)
            middle: list[int] = []
        else:
            rest, choice = convolve(left, right)
            objective, size = best_at(rest, gained, units)
            middle, k = [size], int(choice[units - size])
        used = sum(middle)
        # `k` units go to the tasks after this one, traced through the reversed order.
        head = trace(before_choices[:index], units - used - k)
        tail = trace(after_choices[: count - 1 - index], k)[::-1]
        found[index] = (objective, head + middle + tail)
    return found


def plan_table(tasks: Sequence[Task], units: int, rates: ClusterRates, stamp: str, waiting: Sequence[Task] = ()) -> PlanTable:
    """Plans for: a unit of each task or an idle one lost, a unit joined, each task finished, each waiting task launched.

    Each equals planning from scratch after the event; prefixes and suffixes of the programme are shared between events.
    """
    plans: dict[Event, Allocation] = {}
    idle = units - sum(task.present for task in tasks)
    if units > 0:
        running = running_seconds(units - 1, rates)
        base = all_gains(tasks, units - 1, running)
        hit = {index: replace(task, hit=True) for index, task in enumerate(tasks) if task.present > 0}
        found = leave_one_out(base, {index: all_gains([task], units - 1, running)[0] for index, task in hit.items()}, units - 1)
        for index, (objective, sizes) in found.items():
            plans[Event(EventKind.NODE_LOST, tasks[index].name)] = result_of(tasks, sizes, objective, units - 1)
        if idle > 0:
            plans[Event(EventKind.NODE_LOST)] = allocate(tasks, units - 1, rates)
    plans[Event(EventKind.NODE_JOINED)] = allocate(tasks, units + 1, rates)
    running = running_seconds(units, rates)
    base = all_gains(tasks, units, running)
    for index, (objective, sizes) in leave_one_out(base, dict.fromkeys(range(len(tasks))), units).items():
        rest = [task for position, task in enumerate(tasks) if position != index]
        plans[Event(EventKind.TASK_FINISHED, tasks[index].name)] = result_of(rest, sizes, objective, units)
    if waiting:
        values, choices = forward(base, units + 1)
        for new in waiting:
            objective, size = best_at(values[-1], all_gains([new], units, running)[0], units)
            sizes = [*trace(choices, units - size), size]
            plans[Event(EventKind.TASK_LAUNCHED, new.name)] = result_of((*tasks, new), sizes, objective, units)
    return PlanTable(stamp, plans)
