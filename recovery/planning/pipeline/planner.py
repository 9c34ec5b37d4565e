"""The best schedule that can be had for a pipeline with failed workers: search, then proof where the case is small."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from recovery.planning.pipeline.bounds import Bounds, lower_bound, workers_of
from recovery.planning.pipeline.checker import check_plan
from recovery.planning.pipeline.exact import solve_exactly
from recovery.planning.pipeline.model import PipelineError, Problem, Schedule, Worker
from recovery.planning.pipeline.search import Sweeper, justify, list_schedules, perturb

__all__ = ["Move", "Plan", "checked", "moves_to", "plan", "plan_failures"]

# CP-SAT is asked up to this many operations; a step of the random search costs about as much as this many operations.
PROVABLE = 2_500
SHAKEN = 2_000_000


@dataclass(frozen=True, eq=False)
class Plan:
    """A schedule, a period that none can beat in any routing, and whether none can beat this one in its own routing."""

    schedule: Schedule
    bound: int
    proven: bool

    @property
    def period(self) -> int:
        return self.schedule.period


@dataclass(frozen=True, slots=True)
class Move:
    """One point-to-point copy of normalisation: a living worker takes over the place and parameters of a failed one."""

    worker: Worker
    place: Worker


def plan(problem: Problem, seconds: float = 10.0) -> Plan:
    """The best schedule found for exactly the failures of `problem`.

    `seconds` bounds the solver's time where the search did not meet the bound and the case is small (0: no solver; it is left out
    where OR-tools is not installed). Raises PipelineError.
    """
    bound = lower_bound(problem)
    goal = -(-bound // problem.unit)
    sweeper = Sweeper(problem)
    operations = len(problem.kinds) * problem.stages * problem.total
    slacks = range(-1, 4) if operations <= 20_000 else (0, 1)
    found = [justify(sweeper, starts, goal, rounds=6) for starts in list_schedules(sweeper, slacks)]
    if not found:
        raise PipelineError("no order of operations fits into this memory; raise activation_cap")
    best = min(found, key=sweeper.period)
    best = perturb(sweeper, best, goal, min(2_000, SHAKEN // operations), seed=1)
    schedule, best_bound = sweeper.schedule(best), bound
    if schedule.period > bound and seconds > 0 and operations <= PROVABLE:
        with suppress(PipelineError):
            exact = solve_exactly(schedule, bound, seconds)
            schedule, best_bound = exact.schedule, exact.bound
    return Plan(checked(schedule), bound, schedule.period <= best_bound)


def checked(schedule: Schedule) -> Schedule:
    """The schedule, which the independent checker passed. Raises PipelineError: that is a fault of the planner's."""
    wrong = check_plan(schedule.problem, schedule.columns().T, schedule.period)
    if wrong:
        raise PipelineError(f"the schedule found is not valid: {wrong[0]}")
    return schedule


def plan_failures(problem: Problem, failures: int, seconds: float = 10.0) -> Plan:
    """The best plan for `failures` failed workers wherever normalisation puts them; the failures of `problem` do not count.

    Raises PipelineError where a stage would be left without a worker.
    """
    bounds = Bounds(problem)
    spreads = {bounds.spread(failures), bounds.spread(failures, even=True)}
    least = bounds.least(failures)
    best: Plan | None = None
    for index, spread in enumerate(sorted(spreads)):
        found = plan(replace(problem, failed=workers_of(spread, problem.replicas)), seconds if index == 0 else 0)
        if best is None or found.period < best.period:
            best = found
        if best.period <= least:
            break
    assert best is not None
    return Plan(best.schedule, least, best.period <= least)


def moves_to(problem: Problem, spread: Iterable[int]) -> list[Move]:
    """Copies that turn the failures of `problem` into `spread` failures a stage: each takes a worker from a stage with too few
    failures to the place of a failed one at a stage with too many, so that no worker is moved twice."""
    wanted = tuple(spread)
    if sum(wanted) != len(problem.failed):
        raise PipelineError(f"{sum(wanted)} failures are wanted, {len(problem.failed)} are there")
    givers = [
        (problem.alive(stage)[-1 - index], stage)
        for stage in range(problem.stages)
        for index in range(wanted[stage] - problem.failures[stage])
    ]
    places = [
        sorted(worker for worker in problem.failed if worker[1] == stage)[index]
        for stage in range(problem.stages)
        for index in range(problem.failures[stage] - wanted[stage])
    ]
    return [Move(worker, place) for worker, place in zip(givers, places, strict=True)]
