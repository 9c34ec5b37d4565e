"""How many nodes each task gets: by the planner's dynamic programme, or by the rules of thumb that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from recovery.planning.planner import allocate
from recovery.planning.tasks import ClusterRates, Task
from simulator.policies import Reach
from simulator.workloads import Workload

__all__ = ["largest_feasible", "planned", "rule_of_thumb"]


def largest_feasible(task: Workload, nodes: int) -> int:
    """The size of the highest throughput that `nodes` allow, 0 where none does. More may be worse."""
    reach = min(nodes, len(task.throughput) - 1)
    best = max(range(reach + 1), key=lambda size: (task.throughput[size], -size), default=0)
    return best if task.throughput[best] > 0 else 0


def rule_of_thumb(reach: Reach, tasks: Sequence[Workload], nodes: int) -> list[int]:
    """Nodes in proportion to nothing, weight or model size, by largest remainder; what a task cannot use stays idle.

    A task never gets less than its least size while there are nodes for it, else a share would be no rule that anybody used.
    """
    shares: dict[Reach, Callable[[Workload], float]] = {
        Reach.EQUAL: lambda task: 1.0,
        Reach.WEIGHT: lambda task: task.weight,
        Reach.SIZE: lambda task: task.size,
    }
    share = [shares[reach](task) for task in tasks]
    total = sum(share)
    exact = [nodes * part / total for part in share]
    given = [int(part) for part in exact]
    for index in sorted(range(len(tasks)), key=lambda place: (given[place] - exact[place], place))[: nodes - sum(given)]:
        given[index] += 1
    for index, task in enumerate(tasks):
        while given[index] < task.least:
            donor = max(
                (place for place in range(len(tasks)) if given[place] > tasks[place].least),
                key=lambda place: given[place],
                default=None,
            )
            if donor is None:
                break
            given[donor] -= 1
            given[index] += 1
    return [largest_feasible(task, size) for task, size in zip(tasks, given, strict=True)]


@lru_cache(maxsize=20_000)
def planned(
    tasks: tuple[Workload, ...],
    present: tuple[int, ...],
    hit: tuple[bool, ...],
    nodes: int,
    node_mtbf_seconds: float,
    transition_seconds: float,
) -> tuple[int, ...]:
    """Unicron's objective, solved exactly (recovery/planning). No task that runs is taken below what it needs."""
    found = allocate(
        [
            Task(
                str(index),
                task.throughput,
                task.weight,
                minimum=task.least,
                present=size,
                hit=struck,
                transition_seconds=transition_seconds,
            )
            for index, (task, size, struck) in enumerate(zip(tasks, present, hit, strict=True))
        ],
        nodes,
        ClusterRates(node_mtbf_seconds),
    )
    return tuple(found.units[str(index)] for index in range(len(tasks)))
