"""The planner is exact: equal to brute force, and its table equal to planning from scratch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from recovery.planning.planner import Allocation, Event, EventKind, allocate, apply_event, plan_table
from recovery.planning.tasks import ClusterRates, PlanError, Task, gains, running_seconds

RATES = ClusterRates(unit_mtbf_seconds=2e6)


def random_tasks(rng: random.Random, count: int, units: int) -> list[Task]:
    """Tasks with throughput that jumps up and down with size, some infeasible, some running, some waiting."""
    tasks, left = [], units
    for index in range(count):
        present = rng.randint(0, left)
        left -= present
        throughput = [0.0] + [
            0.0 if rng.random() < 0.2 else rng.uniform(1, 10) * size ** rng.uniform(0.3, 1.2) for size in range(1, units + 1)
        ]
        tasks.append(
            Task(
                f"t{index}",
                tuple(throughput[: rng.randint(2, units + 1)]),
                weight=rng.uniform(0.5, 2.0),
                minimum=rng.randint(0, 3),
                present=present,
                hit=rng.random() < 0.2,
                transition_seconds=rng.uniform(0, 3e5),
                floor=rng.randint(0, present) if rng.random() < 0.3 else 0,
                pinned=rng.random() < 0.15,
            )
        )
    return tasks


@cache
def every_allocation(count: int, units: int) -> NDArray[np.int64]:
    """All ways to give at most `units` to `count` tasks, a row each."""
    rows: NDArray[np.int64] = np.zeros((1, 0), dtype=np.int64)
    for _ in range(count):
        left = units - rows.sum(axis=1)
        sizes = np.concatenate([np.arange(most + 1) for most in left])
        rows = np.column_stack([np.repeat(rows, left + 1, axis=0), sizes])
    return rows


def brute_force(tasks: list[Task], units: int) -> float:
    gained = [gains(task, units, running_seconds(units, RATES)) for task in tasks]
    rows = every_allocation(len(tasks), units)
    return float(np.max(np.sum([each[rows[:, index]] for index, each in enumerate(gained)], axis=0)))


def test_the_plan_reaches_what_brute_force_reaches_on_5000_draws() -> None:
    rng = random.Random(13)
    for _ in range(5_000):
        units = rng.randint(1, rng.randint(1, 24))
        tasks = random_tasks(rng, rng.randint(1, 5), units)
        found = allocate(tasks, units, RATES)
        assert found.objective == pytest.approx(brute_force(tasks, units), rel=1e-12)
        assert sum(found.units.values()) + found.idle == units
        assert_worth_what_it_says(found, tasks, units)


def assert_worth_what_it_says(plan: Allocation, tasks: Sequence[Task], units: int) -> None:
    running = running_seconds(units, RATES)
    reached = sum(gains(task, units, running)[plan.units[task.name]] for task in tasks)
    assert reached == pytest.approx(plan.objective, rel=1e-12)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 24), st.integers(1, 6), st.integers(0, 2), st.booleans())
def test_every_plan_of_the_table_equals_planning_from_scratch(
    rng: random.Random, units: int, count: int, waiting_count: int, spare: bool
) -> None:
    tasks = random_tasks(rng, count, units)
    waiting = [
        Task(f"new{index}", (0.0, *(rng.uniform(1, 9) for _ in range(units))), transition_seconds=50.0)
        for index in range(waiting_count)
    ]
    table = plan_table(tasks, units, RATES, "now", waiting, spare)
    for event, plan in table.plans.items():
        after, left = apply_event(tasks, units, event, waiting, spare)
        assert plan.objective == pytest.approx(allocate(after, left, RATES).objective, rel=1e-12), event
        assert sum(plan.units.values()) + plan.idle == left
        assert_worth_what_it_says(plan, after, left)
    running, idle = sum(task.present > 0 for task in tasks), units > sum(task.present for task in tasks)
    assert len(table.plans) == 1 + len(tasks) + waiting_count + running + idle


def test_a_stale_table_is_refused() -> None:
    table = plan_table([Task("a", (0.0, 1.0, 2.0), present=1)], 2, RATES, "before")
    with pytest.raises(PlanError, match="stale"):
        table.look_up(Event(EventKind.NODE_JOINED), "after")
    assert table.look_up(Event(EventKind.NODE_JOINED), "before").units == {"a": 2}


def test_a_task_is_left_alone_where_the_gain_does_not_pay_for_the_transition() -> None:
    task = Task("a", (0.0, 10.0, 10.1), present=1, transition_seconds=1e6)
    assert allocate([task], 2, RATES).units == {"a": 1}


def test_a_hit_task_pays_the_transition_at_any_size() -> None:
    task = Task("a", (0.0, 10.0, 19.0), present=2, hit=True, transition_seconds=100.0)
    running = running_seconds(2, RATES)
    assert np.allclose(gains(task, 2, running), np.array([0.0, 10.0, 19.0]) * running - 1900.0)


def test_below_its_minimum_a_task_is_worth_nothing() -> None:
    task = Task("a", (0.0, 5.0, 9.0), minimum=2)
    assert allocate([task], 1, RATES).units == {"a": 0}


def test_a_running_task_is_not_taken_below_its_floor_however_little_it_is_worth() -> None:
    poor = Task("poor", (0.0, 1.0, 2.0), weight=0.5, minimum=1, present=2, floor=1)
    rich = Task("rich", (0.0, 1e9, 2e9, 3e9), present=1)
    assert allocate([poor, rich], 3, RATES).units == {"poor": 1, "rich": 2}
    with pytest.raises(PlanError, match="cannot hold"):
        allocate([poor], 0, RATES)


def test_malformed_tasks_are_named() -> None:
    with pytest.raises(PlanError, match="task a: throughput"):
        Task("a", (1.0, 2.0))
    with pytest.raises(PlanError, match="differ"):
        allocate([Task("a", (0.0, 1.0)), Task("a", (0.0, 1.0))], 2, RATES)
