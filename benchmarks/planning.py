"""The planner beside a plain numpy one, and its table of single events beside single plans; a process a granularity, one core."""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from recovery.planning.planner import Event, EventKind, allocate, plan_table
from recovery.planning.tasks import ClusterRates, Task, gains, running_seconds

TASKS = int(os.environ.get("BENCH_TASKS", "100"))
WORKERS = int(os.environ.get("BENCH_WORKERS", "10000"))
RATES = ClusterRates(unit_mtbf_seconds=60 * 86_400.0)
# Whole nodes of eight workers, then single workers: how often plan, table and reference are timed.
ROUNDS = {8: (9, 3, 5), 1: (3, 1, 1)}
HOW = (
    "Plain numpy: the same programme with one vector operation per task and total. Table: every single event (a "
    "unit lost of each task, one joined, each task finished, three waiting tasks launched). Memory: the peak of the process that "
    "plans and holds the table."
)


def run() -> str:
    rows = []
    for granularity in ROUNDS:
        answer = subprocess.run(
            [sys.executable, "-m", "benchmarks.planning", str(granularity)], check=True, capture_output=True, text=True
        )
        rows.append(json.loads(answer.stdout))
    return "\n".join(
        [
            "# Planning",
            "",
            f"{TASKS} tasks, {WORKERS:,} workers, throughput that jumps with size; one core. {HOW}",
            "",
            "| granularity | units | plan s | plain numpy s | ratio | table s | events | in plans | look-up µs | memory MB |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *map(line, rows),
            "",
            "Medians. Both planners reach the same objective: "
            + ", ".join(f"relative difference {row['difference']:.0e} at granularity {row['granularity']}" for row in rows)
            + ".",
            "",
        ]
    )


def line(row: dict[str, float]) -> str:
    return (
        f"| {row['granularity']} | {row['units']:,} | {row['plan']:.3f} | {row['reference']:.2f} | "
        f"{row['reference'] / row['plan']:.1f} | {row['table']:.2f} | {row['events']} | {row['table'] / row['plan']:.1f} | "
        f"{row['look_up'] * 1e6:.1f} | {row['memory'] / 1e6:.0f} |"
    )


def plain(tasks: list[Task], units: int) -> float:
    """S(i,j) row by row as the paper writes it, with what numpy offers."""
    running = running_seconds(units, RATES)
    value: NDArray[np.float64] = np.zeros(units + 1)
    choices = []
    for task in tasks:
        gained = gains(task, units, running)
        best = np.empty(units + 1)
        choice = np.empty(units + 1, dtype=np.int32)
        for j in range(units + 1):
            sums = value[j::-1] + gained[: j + 1]
            choice[j] = np.argmax(sums)
            best[j] = sums[choice[j]]
        value = best
        choices.append(choice)
    return float(value[units])


def some_tasks(units: int, granularity: int) -> list[Task]:
    """Tasks of many sizes whose throughput is a saw of layouts that fit or do not, all running."""
    rng = random.Random(13)
    tasks, left = [], units
    for index in range(TASKS):
        reach = units
        scale = np.arange(reach + 1) * granularity * 1e14 * rng.uniform(0.3, 0.5)
        fits = np.array([rng.choice((1.0, 1.0, 0.95, 0.8, 0.0)) for _ in range(reach + 1)])
        throughput = scale / (1 + np.arange(reach + 1) * granularity / rng.uniform(200, 4_000)) * fits
        present = min(left, rng.randint(1, max(1, 2 * units // TASKS)))
        left -= present
        tasks.append(
            Task(
                f"t{index}",
                tuple(throughput.tolist()),
                rng.uniform(0.5, 2.0),
                max(1, rng.randint(1, 32) // granularity),
                present,
                False,
                rng.uniform(60, 900),
            )
        )
    return tasks


def timed(call: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def measure(granularity: int) -> dict[str, float]:
    units = WORKERS // granularity
    plans, tables, references = ROUNDS[granularity]
    tasks = some_tasks(units, granularity)
    waiting = [Task(f"w{index}", tasks[index].throughput) for index in range(3)]
    plan_table(some_tasks(64, 8)[:3], 64, RATES, "compiled")
    plan = timed(lambda: allocate(tasks, units, RATES), plans)
    table = timed(lambda: plan_table(tasks, units, RATES, "now", waiting), tables)
    ahead = plan_table(tasks, units, RATES, "now", waiting)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    event = Event(EventKind.NODE_LOST, tasks[TASKS // 2].name)
    look_up = timed(lambda: [ahead.look_up(event, "now") for _ in range(1_000)], 5) / 1_000
    reference = timed(lambda: plain(tasks, units), references)
    reached = allocate(tasks, units, RATES).objective
    difference = abs(plain(tasks, units) - reached) / reached
    return {
        "granularity": granularity,
        "units": units,
        "plan": plan,
        "table": table,
        "reference": reference,
        "look_up": look_up,
        "events": len(ahead.plans),
        "memory": memory,
        "difference": difference,
    }


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(json.dumps(measure(int(sys.argv[1]))))
