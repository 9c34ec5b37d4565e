"""What it costs a job to go on without its lost workers by adapting its pipelines: the period it then has, and the time to it.

Pure: a pipeline and its failures in, a price with its reason out. `pipeline_adapter` hands it to the planner, which prices
spares, shrinking, taking from another job and waiting beside it (`recovery/planning/alternatives`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from recovery.planning.alternatives import Adapted, Adapter
from recovery.planning.cluster import TaskState
from recovery.planning.pipeline.bounds import Bounds, workers_of
from recovery.planning.pipeline.model import PipelineError, Problem, Worker
from recovery.planning.pipeline.planner import moves_to
from recovery.planning.pipeline.search import Sweeper, justify, list_schedules

__all__ = ["Adaptation", "PipelineProfile", "Transition", "adapt", "period_with", "pipeline_adapter"]


@dataclass(frozen=True, slots=True)
class Transition:
    """What a change of plan takes. `stage_bytes`: parameters and optimizer state of one worker; `bytes_per_second`: of one link;
    `regroup_seconds`: to form the process groups of the new membership."""

    stage_bytes: float = 0.0
    bytes_per_second: float = 25e9
    regroup_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Adaptation:
    """`period_ratio`: the new period over that without failures in the same mode. `moves`: workers that change their stage."""

    period_ratio: float
    transition_seconds: float
    moves: int
    reason: str


@lru_cache(maxsize=4096)
def quick_period(problem: Problem) -> int:
    """The period of the best of a few schedules: a tenth of a second for hundreds of thousands of operations."""
    sweeper = Sweeper(problem)
    goal = -(-Bounds(replace(problem, failed=frozenset())).least(0) // problem.unit)
    found = [justify(sweeper, starts, goal) for starts in list_schedules(sweeper, (0, 1))]
    if not found:
        raise PipelineError("no order of operations fits into this memory; raise activation_cap")
    return min(sweeper.period(starts) for starts in found) * problem.unit


def period_with(problem: Problem, failures: int) -> int:
    """The period with `failures` failed workers where normalisation puts them."""
    bounds = Bounds(problem)
    spreads = {bounds.spread(failures), bounds.spread(failures, even=True)}
    return min(quick_period(replace(problem, failed=workers_of(spread, problem.replicas))) for spread in spreads)


def adapt(
    problem: Problem,
    unit_seconds: float,
    transition: Transition,
    horizon_seconds: float,
    periods: Callable[[Problem, int], int] = period_with,
) -> Adaptation:
    """Price going on with exactly the failures of `problem`: as they lie, or moved by normalisation, whichever does more
    iterations within `horizon_seconds`.

    The iteration that was broken off is run again; the copies of normalisation go side by side, one a moved worker. `periods` may
    look plans up that were computed ahead. Raises PipelineError where a stage has no worker left.
    """
    healthy = replace(problem, failed=frozenset())
    free = quick_period(healthy)
    bounds = Bounds(healthy)
    moves = moves_to(problem, bounds.spread(len(problem.failed)))
    copying = transition.stage_bytes / transition.bytes_per_second if moves else 0.0

    def price(period: int, copies: float) -> tuple[float, float]:
        seconds = transition.regroup_seconds + copies + period * unit_seconds / 2
        return max(0.0, horizon_seconds - seconds) / period, seconds

    as_is = quick_period(problem)
    normal = min(as_is, periods(healthy, len(problem.failed))) if problem.failed else as_is
    stays, stay_seconds = price(as_is, 0.0)
    goes, go_seconds = price(normal, copying)
    if not moves or stays >= goes:
        why = f"period {as_is} against {free} without failures, with no worker moved"
        return Adaptation(as_is / free, stay_seconds, 0, why)
    why = f"period {normal} against {free} without failures; {len(moves)} workers change their stage, else it were {as_is}"
    return Adaptation(normal / free, go_seconds, len(moves), why)


@dataclass(frozen=True, slots=True)
class PipelineProfile:
    """A job's pipeline for pricing. `nodes`: the workers that each of its nodes holds; `sharded`: optimizer state or parameters
    are split over the replicas (ZeRO), so that no peer has what a lost worker had."""

    problem: Problem
    unit_seconds: float
    transition: Transition
    nodes: Mapping[str, tuple[Worker, ...]]
    sharded: bool = False


def pipeline_adapter(profiles: Mapping[str, PipelineProfile], usable: Callable[[str], bool], horizon_seconds: float) -> Adapter:
    """How the planner asks: FLOP/s and transition of a task without the nodes that are not `usable`; None where it cannot be."""

    def adapter(task: TaskState, lost: int) -> Adapted | None:
        profile = profiles.get(task.name)
        if profile is None or profile.sharded or len(task.nodes) >= len(task.throughput):
            return None
        failed = {worker for node in task.nodes if not usable(node) for worker in profile.nodes.get(node, ())}
        if not failed:
            return None
        try:
            problem = replace(profile.problem, failed=frozenset(profile.problem.failed | failed))
            priced = adapt(problem, profile.unit_seconds, profile.transition, horizon_seconds)
        except PipelineError:
            return None
        return Adapted(task.throughput[len(task.nodes)] / priced.period_ratio, priced.transition_seconds)

    return adapter
