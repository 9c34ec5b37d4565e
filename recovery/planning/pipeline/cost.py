"""What it costs a job to go on without its lost workers by adapting its pipelines: the period it then has, and the time to it.

Pure: a pipeline and its failures in, a price with its reason out. The planner prices spares, shrinking, taking from another job
and waiting beside it (`recovery/planning/alternatives`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from recovery.planning.pipeline.bounds import Bounds, workers_of
from recovery.planning.pipeline.model import PipelineError, Problem, Worker
from recovery.planning.pipeline.planner import moves_to
from recovery.planning.pipeline.search import Sweeper, justify, list_schedules
from recovery.planning.pipeline.specification import parse_specification

__all__ = ["Adaptation", "Periods", "PipelineProfile", "Transition", "adapt", "parse_profile", "period_with", "quick_period"]


# The period of a pipeline without failures, once so many workers of it are lost.
Periods = Callable[[Problem, int], int]


@dataclass(frozen=True, slots=True)
class Transition:
    """What a change of plan takes. `stage_bytes`: parameters and optimizer state of one worker; `bytes_per_second`: of one link;
    `regroup_seconds`: to form the process groups of the new membership; `start_seconds`: to start a lost worker anew beside the
    others, until it can be taken back."""

    stage_bytes: float = 0.0
    bytes_per_second: float = 25e9
    regroup_seconds: float = 10.0
    start_seconds: float = 60.0

    @property
    def joining_seconds(self) -> float:
        """To take a worker back: new groups, and one copy to it."""
        return self.regroup_seconds + self.stage_bytes / self.bytes_per_second


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
    periods: Periods | None = None,
) -> Adaptation:
    """Price going on with exactly the failures of `problem`: as they lie, or moved by normalisation, whichever does more
    iterations within `horizon_seconds`.

    The iteration that was broken off is run again; the copies of normalisation go side by side, one a moved worker. `periods`
    looks plans up that were computed ahead: those are for normalised failures, so that workers are always moved. Raises
    PipelineError where a stage has no worker left.
    """
    healthy = replace(problem, failed=frozenset())
    free = quick_period(healthy) if periods is None else periods(healthy, 0)
    bounds = Bounds(healthy)
    moves = moves_to(problem, bounds.spread(len(problem.failed)))
    copying = transition.stage_bytes / transition.bytes_per_second if moves else 0.0

    def price(period: int, copies: float) -> tuple[float, float]:
        seconds = transition.regroup_seconds + copies + period * unit_seconds / 2
        return max(0.0, horizon_seconds - seconds) / period, seconds

    if periods is not None:
        normal = as_is = periods(healthy, len(problem.failed))
    else:
        as_is = quick_period(problem)
        normal = min(as_is, period_with(healthy, len(problem.failed))) if problem.failed else as_is
    stays, stay_seconds = price(as_is, 0.0)
    goes, go_seconds = price(normal, copying)
    if not moves or (periods is None and stays >= goes):
        why = f"period {as_is} against {free} without failures, with no worker moved"
        return Adaptation(as_is / free, stay_seconds, 0, why)
    why = f"period {normal} against {free} without failures; {len(moves)} workers change their stage"
    if periods is None:
        why += f", else it were {as_is}"
    return Adaptation(normal / free, go_seconds, len(moves), why)


@dataclass(frozen=True, slots=True)
class PipelineProfile:
    """A job's pipeline for pricing. `workers_per_node`: pipeline workers that a node holds, dealt out replica by replica in the
    order of the job's nodes. `sharded`: optimizer state or parameters are split over the replicas (ZeRO), so that no peer
    has what a lost worker had.
    """

    problem: Problem
    unit_seconds: float
    transition: Transition = Transition()
    workers_per_node: int = 1
    sharded: bool = False

    @property
    def replica_nodes(self) -> int:
        """Nodes that one replica takes."""
        return -(-self.problem.stages // self.workers_per_node)

    def workers_of(self, node: int) -> frozenset[Worker]:
        """The workers on the job's `node`-th node."""
        every = self.problem.replicas * self.problem.stages
        first = node * self.workers_per_node
        return frozenset(divmod(index, self.problem.stages) for index in range(first, min(every, first + self.workers_per_node)))

    def of_ranks(self, ranks: Iterable[int], of: int) -> frozenset[Worker] | None:
        """The workers that these ranks of `of` belong to, dealt out replica by replica; None where the numbers do not match."""
        each, rest = divmod(of, self.problem.replicas * self.problem.stages)
        if each < 1 or rest:
            return None
        return frozenset(divmod(rank // each, self.problem.stages) for rank in ranks)

    def without(self, nodes: Iterable[int], horizon_seconds: float, periods: Periods | None = None) -> Adaptation | None:
        """Going on without these nodes; None where no living peer has the parameters of some stage, or none may."""
        return self.without_workers(frozenset().union(*(self.workers_of(node) for node in nodes)), horizon_seconds, periods)

    def without_workers(
        self, workers: Iterable[Worker], horizon_seconds: float, periods: Periods | None = None
    ) -> Adaptation | None:
        """As `without`."""
        if self.sharded:
            return None
        try:
            problem = replace(self.problem, failed=self.problem.failed.union(workers))
            return adapt(problem, self.unit_seconds, self.transition, horizon_seconds, periods)
        except PipelineError:
            return None


def parse_profile(document: object) -> PipelineProfile:
    """A specification as `pitstop pipeline plan` takes it, with unit_seconds, and optionally stage_bytes, bytes_per_second,
    regroup_seconds, start_seconds, workers_per_node and sharded. Raises PipelineError."""
    if not isinstance(document, Mapping):
        raise PipelineError("pipeline: an object with replicas, stages, microbatches, durations and unit_seconds is needed")
    usual = Transition()
    rest = dict(document)
    try:
        unit = float(rest.pop("unit_seconds"))
        numbers = {name: float(rest.pop(name, getattr(usual, name))) for name in Transition.__dataclass_fields__}
        held, sharded = int(rest.pop("workers_per_node", 1)), bool(rest.pop("sharded", False))
    except (KeyError, TypeError, ValueError) as error:
        raise PipelineError(f"pipeline: a number is needed: {error}") from None
    if unit <= 0 or held < 1 or min(numbers.values()) < 0 or numbers["bytes_per_second"] <= 0:
        raise PipelineError("pipeline: unit_seconds, bytes_per_second and workers_per_node are above 0, the rest not below")
    return PipelineProfile(parse_specification(rest).problem, unit, Transition(**numbers), held, sharded)
