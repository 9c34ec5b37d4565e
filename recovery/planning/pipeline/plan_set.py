"""Plans for every number of failures, computed ahead: looked up when a worker fails, kept in a directory.

A plan for more failures is valid for fewer (living workers stand idle), so that the counts are bisected: between two counts whose
plans take nearly the same time, the plan of the greater one serves.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from recovery.planning.pipeline.bounds import Bounds, one_f_one_b, workers_of
from recovery.planning.pipeline.model import PipelineError, Problem, Schedule, Shorts, route
from recovery.planning.pipeline.planner import checked
from recovery.planning.pipeline.search import Sweeper, justify, list_schedules
from recovery.planning.pipeline.specification import document_of, parse_specification

__all__ = ["Entry", "PlanSet", "compute_plan_set", "load_plan_set", "save_plan_set"]

# Limits above the bound within which stages are filled evenly; and how near two periods need no plan between them.
LIMITS = (1.0, 1.015, 1.03)
NEAR = 1.005
# From this many (micro-batch, stage) on a plan costs a second: fewer are made, the tightest limit is left out (a wider one has
# always been as good there), and only the best candidate is justified, in one round (a second one has gained nothing).
LARGE = 100_000


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known for one number of failures: the period, a bound in any routing, and the count whose plan serves."""

    period: int
    bound: int
    plan: int


@dataclass(frozen=True, eq=False)
class PlanSet:
    """`entries[F]` for every number of failures F from 0; `schedules` by the count that they are for."""

    problem: Problem
    entries: tuple[Entry, ...]
    schedules: Mapping[int, Schedule]

    def schedule(self, failures: int) -> Schedule:
        """The plan for `failures`. Raises PipelineError where the set does not reach so far."""
        if not 0 <= failures < len(self.entries):
            raise PipelineError(f"{failures} failures: plans are there for 0 to {len(self.entries) - 1}")
        return self.schedules[self.entries[failures].plan]


def is_large(problem: Problem) -> bool:
    return problem.total * problem.stages >= LARGE


def best_spread(problem: Problem, bounds: Bounds, failures: int) -> Schedule:
    """The best schedule over several ways to spread `failures` over the stages; checked."""
    least = bounds.least(failures)
    large = is_large(problem)
    limits = LIMITS[1:] if large else LIMITS
    spreads = {bounds.spread(failures)} | {bounds.spread(failures, least * limit, even=True) for limit in limits}
    found: list[tuple[int, int, Sweeper, Shorts]] = []
    for spread in sorted(spreads):
        sweeper = Sweeper(replace(problem, failed=workers_of(spread, problem.replicas)))
        for starts in list_schedules(sweeper):
            found.append((sweeper.period(starts), len(found), sweeper, starts))
    if not found:
        raise PipelineError("no order of operations fits into this memory; raise activation_cap")
    found.sort(key=lambda item: item[:2])
    goal = -(-least // problem.unit)
    best: Schedule | None = None
    for period, _, sweeper, starts in found[: 1 if large else 2]:
        shorter = sweeper.schedule(justify(sweeper, starts, goal, 1 if large else 3) if period > goal else starts)
        if best is None or shorter.period < best.period:
            best = shorter
        if best.period <= least:
            break
    assert best is not None
    return checked(best)


def compute_plan_set(
    problem: Problem, most: int, workers: int = 2, progress: Callable[[int, int], None] = lambda done, of: None
) -> PlanSet:
    """Plans for 0 to `most` failures, on `workers` threads; the failures of `problem` do not count.

    `progress` is told how many counts are settled, of how many. Raises PipelineError where `most` leaves a stage without workers.
    """
    bounds = Bounds(problem)
    least = [bounds.least(failures) for failures in range(most + 1)]
    schedules: dict[int, Schedule] = {}
    settled = 0
    near = 1 + (NEAR - 1) * (2 if is_large(problem) else 1)
    with ThreadPoolExecutor(workers) as pool:
        running: dict[Future[Schedule], int] = {}
        asked: set[int] = set()

        def ask(failures: int) -> None:
            asked.add(failures)
            running[pool.submit(best_spread, problem, bounds, failures)] = failures

        for failures in sorted({0, min(1, most), most}):
            ask(failures)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                schedules[running.pop(future)] = future.result()
            settled = 0
            counts = sorted(asked)
            for low, high in pairwise(counts):
                if low not in schedules or high not in schedules:
                    continue
                value = schedules[high].period
                if high - low > 1 and value > near * schedules[low].period and value > least[low + 1]:
                    ask((low + high) // 2)
                else:
                    settled += high - low
            progress(settled, most)
    entries: list[Entry] = []
    serving = most
    for failures in range(most, -1, -1):
        if failures in schedules and schedules[failures].period <= schedules[serving].period:
            serving = failures
        entries.append(Entry(schedules[serving].period, least[failures], serving))
    entries.reverse()
    used = {entry.plan for entry in entries}
    return PlanSet(problem, tuple(entries), {count: schedules[count] for count in sorted(used)})


def save_plan_set(plans: PlanSet, directory: Path) -> None:
    """Write index.json and one plan-F.npz a distinct plan; the index comes last, so that a broken write leaves no new index."""
    directory.mkdir(parents=True, exist_ok=True)
    for count, schedule in plans.schedules.items():
        content = io.BytesIO()
        np.savez_compressed(
            content,
            starts=schedule.starts.astype(np.int32),
            failures=np.array(schedule.problem.failures),
            # For executors (pitstop.pipeline.plan_set), which know neither the rules of routing nor those of placing failures.
            routing=schedule.routing.astype(np.int32),
            failed=np.array(sorted(schedule.problem.failed), dtype=np.int32).reshape(-1, 2),
        )
        _replace(directory / f"plan-{count}.npz", content.getvalue())
    index = {
        **document_of(plans.problem),
        "one_f_one_b": one_f_one_b(plans.problem),
        "plans": [{"period": entry.period, "lower_bound": entry.bound, "plan": entry.plan} for entry in plans.entries],
    }
    _replace(directory / "index.json", json.dumps(index).encode())


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


def load_plan_set(directory: Path) -> PlanSet:
    """What save_plan_set wrote; every schedule is checked again. Raises PipelineError."""
    try:
        index = json.loads((directory / "index.json").read_text("utf-8"))
        entries = tuple(Entry(item["period"], item["lower_bound"], item["plan"]) for item in index.pop("plans"))
        index.pop("one_f_one_b")
        problem = parse_specification(index).problem
        schedules = {}
        for count in sorted({entry.plan for entry in entries}):
            with np.load(directory / f"plan-{count}.npz") as arrays:
                failed = workers_of(arrays["failures"].tolist(), problem.replicas)
                present = replace(problem, failed=failed)
                schedules[count] = checked(Schedule(present, route(present), arrays["starts"].astype(np.int64)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise PipelineError(f"{directory}: no set of plans: {error}; compute it again with pitstop pipeline plans") from None
    return PlanSet(problem, entries, schedules)
