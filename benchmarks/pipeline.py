"""Plans for pipelines with failed workers: sets for 2,048 workers, small cases against proven optima, claims of the paper."""

from __future__ import annotations

import itertools
import os
import random
import resource
import time
from collections.abc import Iterator
from dataclasses import replace

from recovery.planning.pipeline.bounds import one_f_one_b
from recovery.planning.pipeline.cost import period_with, quick_period
from recovery.planning.pipeline.exact import solve_exactly
from recovery.planning.pipeline.model import Mode, Problem, Routing
from recovery.planning.pipeline.plan_set import compute_plan_set
from recovery.planning.pipeline.planner import plan
from recovery.planning.pipeline.throughput import SHAPES, Policy, ablation, poisson_failures, simulate

# Micro-batches and memory against what 1F1B needs; PIPELINE_SETS takes the first so many.
SETS = ((32, 1.0), (64, 1.0), (128, 1.0), (128, 1.5), (128, 2.0))[: int(os.environ.get("PIPELINE_SETS", "5"))]
SMALL = int(os.environ.get("PIPELINE_CASES", "300"))
SECONDS = 10.0


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def sets() -> Iterator[str]:
    yield "| micro-batches | cap | wall, s | processor, s | plans | gap, max | mean | 0 / 64 / 205 / 512 failures | 1F1B |"
    yield "|---:|---:|---:|---:|---:|---:|---:|---|---:|"
    compute_plan_set(Problem(2, 2, 2), 1)  # compiled before the clock starts
    for microbatches, memory in SETS:
        problem = Problem(32, 64, microbatches, activation_cap=int(64 * memory), routing=Routing.FREE)
        began, used = time.monotonic(), processor_seconds()
        plans = compute_plan_set(problem, 512, workers=2)
        wall, processor = time.monotonic() - began, processor_seconds() - used
        entries = plans.entries[1:]
        assert all(first.period <= second.period for first, second in itertools.pairwise(entries))
        gaps = [entry.period / entry.bound - 1 for entry in entries]
        values = " / ".join(str(plans.entries[count].period) for count in (0, 64, 205, 512))
        row = f"| {microbatches} | {memory}x | {wall:.0f} | {processor:.0f} | {len(plans.schedules)} | {max(gaps):.1%} "
        yield row + f"| {sum(gaps) / len(gaps):.1%} | {values} | {one_f_one_b(problem)} |"


def small_cases() -> list[Problem]:
    """Up to three failures in 2 to 4 replicas of 2 to 4 stages with 2 to 6 micro-batches, every mode, caps of 1F1B and above."""
    cases = []
    for replicas, stages, microbatches in itertools.product(range(2, 5), range(2, 5), range(2, 7)):
        workers = [(replica, stage) for replica in range(replicas) for stage in range(stages)]
        for failures, mode, cap in itertools.product(range(4), Mode, (stages, stages + 1, 2 * stages, None)):
            draw = random.Random(f"{replicas} {stages} {microbatches} {failures} {mode} {cap}")
            failed = draw.sample(workers, failures)
            if all(sum(stage == index for _, stage in failed) < replicas for index in range(stages)):
                problem = Problem(replicas, stages, microbatches, mode=mode, activation_cap=cap, failed=frozenset(failed))
                cases.append(problem)
    return random.Random(14).sample(cases, min(SMALL, len(cases)))


def small() -> Iterator[str]:
    """The planner without and with the solver, against what the solver proves from the planner's schedule on."""
    searched = planned = proven = 0
    worst = 0.0
    cases = small_cases()
    for problem in cases:
        search = plan(problem, seconds=0)
        exact = search.schedule if search.proven else solve_exactly(search.schedule, search.bound, SECONDS).schedule
        best = exact.period
        final = plan(problem, SECONDS)
        proven += final.proven
        searched += search.period == best
        planned += final.period <= best
        worst = max(worst, search.period / best - 1)
    yield f"{len(cases)} small cases (unit durations, own routing; up to 4 x 4 x 6, up to 3 failures, every mode and cap):"
    yield f"optimal by proof {proven}; the search alone equals the best known in {searched / len(cases):.1%}, never more than "
    yield f"{worst:.1%} above; search and solver together equal it in {planned / len(cases):.1%}."


def didactic() -> Iterator[str]:
    yield "| 3 x 4 x 6, cap 6 | coupled | decoupled | staggered |"
    yield "|---|---:|---:|---:|"
    for failed in ((), ((1, 0),), ((1, 1),), ((1, 2),), ((1, 3),)):
        periods = [plan(Problem(3, 4, 6, mode=mode, activation_cap=6, failed=frozenset(failed))).period for mode in Mode]
        yield f"| failed {list(failed) or 'none'} | {' | '.join(map(str, periods))} |"


def claims() -> Iterator[str]:
    yield "| 32 workers, 3 failures, 5 draws | adaptive | + decoupled | + staggered | + normalised |"
    yield "|---|---:|---:|---:|---:|"
    for shape in SHAPES[:3]:
        found = ablation(shape.problem(), 3, range(5))
        yield (
            f"| {shape.name}, {shape.replicas} x {shape.stages} x {shape.microbatches} | "
            + " | ".join(f"{value:.2f}" for value in found.values())
            + " |"
        )
    yield ""
    yield "| failures of all workers | shape | throughput against 1F1B | against own | fault-scaled |"
    yield "|---|---|---:|---:|---:|"
    for shape in SHAPES[3:]:
        problem = shape.problem()
        workers = shape.replicas * shape.stages
        own = quick_period(replace(problem, failed=frozenset()))
        for share in (0.01, 0.05, 0.10):
            failures = max(1, round(share * workers))
            period = period_with(problem, failures)
            yield (
                f"| {share:.0%} ({failures}) | {shape.name}, {shape.replicas} x {shape.stages} x {shape.microbatches} | "
                f"{one_f_one_b(problem) / period:.3f} | {own / period:.3f} | {1 - failures / workers:.3f} |"
            )


def policies() -> Iterator[str]:
    yield "| one failure every 30 min for 6 h, no repair, mean of 5 draws | " + " | ".join(Policy) + " |"
    yield "|---|" + "---:|" * len(Policy)
    for shape in SHAPES:
        cells = []
        for policy in Policy:
            runs = [simulate(shape, policy, poisson_failures(1800, 21_600, None, seed), 21_600) for seed in range(5)]
            cells.append(f"{sum(run.against_1f1b for run in runs) / 5:.2f} ({sum(run.against_own for run in runs) / 5:.2f})")
        yield f"| {shape.name} | " + " | ".join(cells) + " |"


def run() -> str:
    parts = ["# Pipelines with failed workers"]
    for title, rows in (
        ("The paper's example", didactic()),
        ("Small cases", small()),
        ("Ablation, and 1 / 5 / 10 % failures (caps 1.5x, unit durations)", claims()),
        ("Throughput over time against 1F1B (against the policy's own fault-free)", policies()),
        ("Plans for 1 to 512 failures of 2,048 workers (32 x 64), staggered, free routing, two threads", sets()),
    ):
        parts.append(f"\n## {title}\n\n" + "\n".join(rows))
    return "\n".join(parts)
