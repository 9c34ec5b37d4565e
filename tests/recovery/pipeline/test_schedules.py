from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.planning.pipeline.bounds import Bounds, lower_bound, one_f_one_b
from recovery.planning.pipeline.checker import check_plan
from recovery.planning.pipeline.exact import solve_exactly
from recovery.planning.pipeline.model import Durations, Mode, PipelineError, Problem, Routing
from recovery.planning.pipeline.planner import moves_to, plan, plan_failures
from recovery.planning.pipeline.search import Sweeper, list_schedules

DIDACTIC = Problem(3, 4, 6, activation_cap=6, failed=frozenset({(1, 2)}))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    replicas, stages, microbatches = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    workers = list(product(range(1, replicas), range(stages)))
    failed = draw(st.sets(st.sampled_from(workers))) if workers else set()
    durations = Durations(*draw(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(0, 2))))
    cap = draw(st.sampled_from([None, 1, stages, stages + 1]))
    return Problem(
        replicas,
        stages,
        microbatches,
        durations,
        draw(st.sampled_from(Mode)),
        cap,
        frozenset(failed),
        draw(st.sampled_from(Routing)),
    )


@pytest.mark.parametrize(("mode", "period"), [(Mode.COUPLED, 33), (Mode.DECOUPLED, 29), (Mode.STAGGERED, 27)])
def test_the_papers_example_takes_what_the_proven_optimum_takes(mode: Mode, period: int) -> None:
    found = plan(replace(DIDACTIC, mode=mode))
    assert found.period == period
    assert found.proven
    assert one_f_one_b(DIDACTIC) == 27


def test_without_failures_coupled_backward_takes_what_1f1b_takes() -> None:
    assert plan(Problem(2, 4, 6, mode=Mode.COUPLED, activation_cap=4)).period == 27


@given(problems())
@settings(max_examples=60)
def test_every_plan_passes_the_checker_and_no_plan_is_below_the_bound(problem: Problem) -> None:
    found = plan(problem, seconds=0)
    assert check_plan(problem, found.schedule.table(), found.period) == []
    assert found.period >= lower_bound(problem)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("cap", [1, None])
def test_the_bound_holds_for_what_the_solver_proves_without_it(mode: Mode, cap: int | None) -> None:
    problem = Problem(2, 2, 2, Durations(1, 1, 1, 1), mode, cap, frozenset({(0, 1)} if cap else {(0, 0)}))
    sweeper = Sweeper(problem)
    exact = solve_exactly(sweeper.schedule(next(list_schedules(sweeper))), 0, seconds=30)
    assert exact.bound == exact.schedule.period >= lower_bound(problem)
    assert check_plan(problem, exact.schedule.table(), exact.schedule.period) == []
    assert plan(problem).period == exact.schedule.period


@pytest.mark.parametrize("column", [0, 1, 2, 3, 4])
def test_a_plan_that_was_tampered_with_fails_the_checker(column: int) -> None:
    found = plan(DIDACTIC)
    rows = found.schedule.table()
    for row in range(0, len(rows), 7):
        changed = rows.copy()
        changed[row, column] += 1000 if column == 4 else 1
        assert check_plan(DIDACTIC, changed, found.period)


def test_the_checker_names_each_kind_of_fault() -> None:
    found = plan(DIDACTIC)
    rows = found.schedule.table()
    dead = replace(DIDACTIC, failed=frozenset({(1, 2), (0, 0)}))
    tight = replace(DIDACTIC, activation_cap=1)
    assert "failed worker" in check_plan(dead, rows, found.period)[0]
    assert "activations" in check_plan(tight, rows, found.period)[0]
    assert "it takes 27" in check_plan(DIDACTIC, rows, 26)[0]
    assert "not once" in check_plan(DIDACTIC, rows[:-1], found.period)[0]
    slow = replace(DIDACTIC, durations=Durations(1, 1, 1, 1))
    assert any("arrives" in line for line in check_plan(slow, rows, found.period))
    at_once = rows.copy()
    at_once[:, 4] = 0
    assert any("two things" in line for line in check_plan(DIDACTIC, at_once, 1))


def test_failures_go_where_the_bound_is_least_and_more_of_them_never_shorten_it() -> None:
    bounds = Bounds(Problem(32, 64, 32, activation_cap=64))
    values = [bounds.least(failures) for failures in range(513)]
    assert values == sorted(values)
    assert values[0] == 191
    for failures in (1, 64, 512):
        spread = bounds.spread(failures)
        assert sum(spread) == failures
        assert max(bounds.table[stage][count] for stage, count in enumerate(spread)) == values[failures]
        # Early and late stages are busy with filling and draining; the middle has room.
        assert sum(spread[16:48]) >= failures / 2


def test_normalisation_moves_a_worker_at_most_once() -> None:
    problem = Problem(4, 4, 6, failed=frozenset({(0, 3), (1, 3), (2, 0)}))
    moves = moves_to(problem, (0, 1, 1, 1))
    assert len(moves) == 2
    assert len({move.worker for move in moves}) == len({move.place for move in moves}) == 2
    left = set(problem.failed) - {move.place for move in moves} | {move.worker for move in moves}
    assert sorted(stage for _, stage in left) == [1, 2, 3]


def test_a_count_of_failures_is_planned_where_normalisation_puts_them() -> None:
    found = plan_failures(Problem(3, 4, 6, mode=Mode.DECOUPLED), 1)
    assert len(found.schedule.problem.failed) == 1
    assert found.period == 27


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"failed": frozenset({(0, 0), (1, 0), (2, 0)})}, "checkpoint"),
        ({"failed": frozenset({(3, 0)})}, "not in a pipeline"),
        ({"activation_cap": 0}, "at least 1"),
        ({"microbatches": 10_000_000}, "operations"),
        ({"durations": Durations(forward=0)}, "durations"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_words(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        replace(DIDACTIC, **changes)  # type: ignore[arg-type]
