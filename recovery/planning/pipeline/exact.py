"""Small pipelines to proven optimality with CP-SAT (OR-tools, the extra `plan`), in the routing of the problem.

Micro-batches that go the same way are interchangeable: swapping the rest of their ways puts any schedule in FIFO order among them
without changing when a worker works or how much it holds, so that order is given to the solver.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from recovery.planning.pipeline.model import Ints, Mode, PipelineError, Schedule

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["Exact", "solve_exactly"]


@dataclass(frozen=True, eq=False)
class Exact:
    """The schedule found (the one given, if none is better), and a bound for this routing; they meet where it is optimal."""

    schedule: Schedule
    bound: int


def solve_exactly(known: Schedule, bound: int, seconds: float, workers: int = 2) -> Exact:
    """Search for a shorter period than that of `known`, down to `bound`, for `seconds` of the solver's deterministic time.

    Raises PipelineError without OR-tools.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise PipelineError("proving small cases needs OR-tools: pip install 'pitstop[plan]'") from None
    problem = known.problem
    unit = problem.unit
    lengths = [length // unit for length in problem.lengths]
    hop = problem.durations.hop // unit
    kinds, stages, total = known.starts.shape
    limit = known.period // unit
    # Every window meets that of the first stage, which is where its micro-batches come from and go to.
    horizon = 2 * limit if problem.mode is Mode.STAGGERED else limit
    model = cp_model.CpModel()
    period = model.new_int_var(-(-bound // unit), limit, "period")
    start: dict[tuple[int, int, int], cp_model.IntVar] = {}
    for s in range(stages):
        earliest = s * (lengths[0] + hop)
        for k in range(kinds):
            for b in range(total):
                start[k, s, b] = model.new_int_var(earliest + (sum(lengths[:k])), horizon - lengths[k], "")
    for s in range(stages):
        for b in range(total):
            if s:
                model.add(start[0, s, b] >= start[0, s - 1, b] + lengths[0] + hop)
                model.add(start[1, s - 1, b] >= start[1, s, b] + lengths[1] + hop)
            model.add(start[1, s, b] >= start[0, s, b] + lengths[0])
            if kinds == 3:
                model.add(start[2, s, b] >= start[1, s, b] + lengths[1])
    _share_workers(model, known, start, lengths, horizon)
    for s in range(stages):
        if problem.mode is Mode.STAGGERED:
            begin = model.new_int_var(0, horizon, "")
            end = model.new_int_var(0, horizon, "")
            model.add(end - begin <= period)
            for b in range(total):
                model.add(begin <= start[0, s, b])
                model.add(end >= start[kinds - 1, s, b] + lengths[-1])
        else:
            for b in range(total):
                model.add(start[kinds - 1, s, b] + lengths[-1] <= period)
    ways = defaultdict(list)
    for b in range(total):
        ways[known.routing[:, b].tobytes()].append(b)
    for alike in ways.values():
        for first, second in pairwise(alike):
            for k in range(kinds):
                for s in range(stages):
                    model.add(start[k, s, second] >= start[k, s, first] + lengths[k])
    hint = _in_order(known.starts, list(ways.values())) // unit
    for (k, s, b), variable in start.items():
        model.add_hint(variable, int(hint[k, s, b]))
    model.minimize(period)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Exact(known, bound)
    proven = max(bound, round(solver.best_objective_bound) * unit)
    starts = np.empty_like(known.starts)
    for (k, s, b), variable in start.items():
        starts[k, s, b] = solver.value(variable) * unit
    found = Schedule(problem, known.routing, starts)
    return Exact(found if found.period < known.period else known, proven)


def _share_workers(
    model: cp_model.CpModel, known: Schedule, start: dict[tuple[int, int, int], cp_model.IntVar], lengths: list[int], horizon: int
) -> None:
    kinds, stages, total = known.starts.shape
    cap = known.problem.cap
    for s in range(stages):
        for replica in np.unique(known.routing[s]):
            own = [b for b in range(total) if known.routing[s, b] == replica]
            model.add_no_overlap(
                [
                    model.new_fixed_size_interval_var(start[k, s, b], lengths[k], "")
                    for k in range(kinds)
                    if lengths[k]
                    for b in own
                ]
            )
            if len(own) > cap:
                held = []
                for b in own:
                    end = start[kinds - 1, s, b] + lengths[-1]
                    size = model.new_int_var(sum(lengths), horizon, "")
                    held.append(model.new_interval_var(start[0, s, b], size, end, ""))
                model.add_cumulative(held, [1] * len(held), cap)


def _in_order(starts: Ints, ways: list[list[int]]) -> Ints:
    """The same schedule with micro-batches of one way renamed into FIFO order, each kind and stage by itself."""
    ordered = starts.copy()
    for alike in ways:
        ordered[:, :, alike] = np.sort(starts[:, :, alike], axis=2)
    return ordered
