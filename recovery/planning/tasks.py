"""Tasks as the planner sees them: what each is worth at every size, and what a change costs it.

Symbols follow Unicron (arXiv 2401.00134, section 5): F(t,x) = w(t) * T(t,x) where x meets the task's minimum, else 0;
G(t,x') = F(t,x') * D_running(n') - F(t,x) * [changed or hit] * D_transition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["ClusterRates", "Gains", "PlanError", "Task", "all_gains", "gains", "gains_when_hit", "running_seconds", "when_hit"]

Gains = NDArray[np.float64]


class PlanError(ValueError):
    """The state cannot be planned for; the message names the task and what is wrong."""


@dataclass(frozen=True, slots=True)
class Task:
    """One job to place. Sizes are in units of the planner's granularity (a node, or a GPU).

    `throughput[x]` is the achieved aggregate FLOP/s at x units, 0 where x is infeasible; sizes beyond its end are infeasible.
    `present` is the size now, `hit` whether the event took a worker of it; `transition_seconds` what any change costs it. Below
    `floor` it may not be taken, whatever that would gain others: the minimum of a job that runs well. `pinned`: only its present
    size, until it is hit.
    """

    name: str
    throughput: tuple[float, ...]
    weight: float = 1.0
    minimum: int = 1
    present: int = 0
    hit: bool = False
    transition_seconds: float = 0.0
    floor: int = 0
    pinned: bool = False
    # Weighted throughput as an array, whatever the minimum.
    curve: Gains = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.throughput or self.throughput[0] != 0:
            raise PlanError(f"task {self.name}: throughput begins with 0 for no workers")
        curve = np.asarray(self.throughput)
        object.__setattr__(self, "curve", curve * self.weight)
        if curve.min() < 0 or not np.isfinite(curve).all():
            raise PlanError(f"task {self.name}: throughput is finite and not negative")
        if not 0 <= self.floor <= max(0, self.present):
            raise PlanError(f"task {self.name}: the floor lies between 0 and its present size")
        if self.weight <= 0 or self.minimum < 0 or self.present < 0 or self.transition_seconds < 0:
            raise PlanError(f"task {self.name}: weight is positive; minimum, present and transition_seconds are not negative")

    def worth(self, units: int) -> float:
        """F(t,x): weighted FLOP/s at `units`."""
        return self.weight * self.throughput[units] if self.minimum <= units < len(self.throughput) else 0.0


@dataclass(frozen=True, slots=True)
class ClusterRates:
    """How often one unit fails, in seconds between failures; a floor keeps D_running finite for an empty cluster."""

    unit_mtbf_seconds: float
    longest_seconds: float = 30 * 86_400.0


def running_seconds(units: int, rates: ClusterRates) -> float:
    """D_running(n'): the expected time until the next reconfiguration of a cluster of `units`."""
    return min(rates.longest_seconds, rates.unit_mtbf_seconds / max(1, units))


def gains(task: Task, units: int, running: float) -> Gains:
    """G(t,k) for k = 0..units, in FLOP: what `running` seconds at size k bring, less what the transition to it loses."""
    return _gains(task, units, running, task.hit, task.floor, task.pinned)


def gains_when_hit(task: Task, units: int, running: float) -> Gains:
    """The gains of `when_hit(task)`."""
    return _gains(task, units, running, True, floor_when_hit(task), False)


def _gains(task: Task, units: int, running: float, hit: bool, floor: int, pinned: bool) -> Gains:
    worth = np.zeros(units + 1)
    reach = min(len(task.curve), units + 1)
    worth[:reach] = task.curve[:reach]
    worth[: min(task.minimum, units + 1)] = 0.0
    gained: Gains = worth * running
    # The size before the failure is what the penalty counts from, also for the task that was hit.
    penalty = task.worth(task.present) * task.transition_seconds
    spared = gained[task.present] if task.present <= units and not hit else None
    gained -= penalty
    if spared is not None:
        gained[task.present] = spared
    if pinned:
        gained[: task.present] = -np.inf
        gained[task.present + 1 :] = -np.inf
    gained[:floor] = -np.inf
    return gained


def when_hit(task: Task) -> Task:
    """The task after it lost a worker: any size costs it the transition, also the present one."""
    return replace(task, hit=True, floor=floor_when_hit(task), pinned=False)


def floor_when_hit(task: Task) -> int:
    """What is left still holds the floor, or there is none."""
    return task.floor if task.floor < task.present else 0


def all_gains(tasks: Sequence[Task], units: int, running: float) -> list[Gains]:
    return [gains(task, units, running) for task in tasks]
