from dataclasses import replace

import pytest

from recovery.planning.adapting import never, priced_worker_loss
from recovery.planning.alternatives import AlternativeKind
from recovery.planning.cluster import parse_trigger
from recovery.planning.document import parse_state
from recovery.planning.pipeline.cost import Transition, adapt, parse_profile
from recovery.planning.pipeline.model import Mode, PipelineError, Problem
from recovery.planning.pipeline.throughput import (
    SHAPES,
    Change,
    Policy,
    ablation,
    absorbed_by_bubbles,
    poisson_failures,
    rate,
    simulate,
)
from recovery.planning.proposal import propose

PROBLEM = Problem(4, 4, 8, activation_cap=6, failed=frozenset({(1, 2)}))


def test_adapting_costs_at_least_the_lost_share_and_says_why() -> None:
    priced = adapt(PROBLEM, 0.1, Transition(regroup_seconds=10), horizon_seconds=86_400)
    assert 1.0 <= priced.period_ratio <= 4 / 3 + 0.1
    assert priced.transition_seconds >= 10
    assert "without failures" in priced.reason


def test_workers_are_moved_only_where_the_copies_pay_off() -> None:
    crowded = replace(PROBLEM, failed=frozenset({(1, 2), (2, 2)}))
    cheap = Transition(stage_bytes=1e9, bytes_per_second=25e9)
    dear = Transition(stage_bytes=1e12, bytes_per_second=1e6)
    moved = adapt(crowded, 0.1, cheap, horizon_seconds=86_400)
    stayed = adapt(crowded, 0.1, dear, horizon_seconds=86_400)
    assert moved.moves > 0 == stayed.moves
    assert moved.period_ratio < stayed.period_ratio
    with pytest.raises(PipelineError, match="checkpoint"):
        adapt(replace(PROBLEM, failed=frozenset((replica, 1) for replica in range(4))), 0.1, cheap, 3600)


STATE = {
    "nodes": [{"names": "n[1-4]"}],
    "tasks": [
        {
            "name": "gpt",
            "nodes": "n[1-4]",
            "step_seconds": {4: 10.0},
            "flops_per_step": 1e18,
            "minimum": 4,
            "pipeline_schedule": {
                "replicas": 4,
                "stages": 4,
                "microbatches": 8,
                "durations": {"F": 1, "B": 1, "W": 1, "hop": 0},
                "activation_cap": 6,
                "unit_seconds": 0.3,
                "workers_per_node": 4,
            },
        }
    ],
}


def test_the_planner_prices_adapting_the_pipeline_beside_the_other_ways() -> None:
    proposal = propose(parse_state(STATE), [parse_trigger("node n2 lost")])
    adapted = next(item for item in proposal.alternatives if item.kind is AlternativeKind.ADAPT_PIPELINE)
    # A whole replica is gone, so that three quarters of the workers do all of the batch.
    at_work = max(segment.waf for segment in adapted.segments[:2])
    assert 0.6e17 < at_work <= 0.8e17
    assert adapted.targets == {"gpt": 3}
    assert 10 <= adapted.segments[0].seconds < 60
    # The node is taken back without a restart, once it is repaired.
    assert [segment.waf > 0 for segment in adapted.segments] == [False, True, False, True]
    assert adapted.segments[2].seconds == pytest.approx(10.0)
    assert proposal.chosen is adapted


def test_sharded_states_and_stages_without_a_worker_cannot_be_adapted() -> None:
    profile = parse_profile(STATE["tasks"][0]["pipeline_schedule"])  # type: ignore[index]
    assert profile.workers_of(1) == {(1, stage) for stage in range(4)}
    assert profile.without([1], 86_400) is not None
    assert profile.without(range(4), 86_400) is None
    assert replace(profile, sharded=True).without([1], 86_400) is None
    with pytest.raises(PipelineError, match="unit_seconds"):
        parse_profile({"replicas": 4})


def test_throughput_over_time_counts_pauses_and_repairs() -> None:
    shape = SHAPES[0]
    run = simulate(shape, Policy.FAULT_SCALED, [Change(100, 1), Change(300, -1)], 400, change_seconds=10)
    share = 1 - 1 / 32
    assert run.against_1f1b == pytest.approx((100 + 190 * share + 90) / 400)
    assert run.steps == ((0.0, 1.0), (100, share), (300, 1.0))
    adapted = simulate(shape, Policy.ADAPT, [], 400)
    assert adapted.against_own == pytest.approx(1.0)
    assert adapted.against_1f1b > 1


def test_no_policy_gains_from_failures() -> None:
    for policy in Policy:
        rates = [rate(SHAPES[1], policy, failed) for failed in range(0, 9, 2)]
        assert rates == sorted(rates, reverse=True)
        assert rate(SHAPES[1], policy, 32) == 0.0


def test_failures_come_as_often_as_asked_and_are_the_same_for_a_seed() -> None:
    changes = poisson_failures(1800, 6 * 3600 * 100, 3600, seed=1)
    assert changes == poisson_failures(1800, 6 * 3600 * 100, 3600, seed=1)
    assert sum(change.workers > 0 for change in changes) == pytest.approx(1200, rel=0.1)
    assert [change.seconds for change in changes] == sorted(change.seconds for change in changes)


def test_the_papers_thirty_failures_by_bubbles_are_twenty_a_stage_by_area() -> None:
    assert absorbed_by_bubbles(Problem(64, 16, 32)) == (30, 20)


def test_each_technique_of_the_paper_adds_to_the_one_before() -> None:
    found = ablation(Problem(8, 4, 8, mode=Mode.STAGGERED, activation_cap=7), 3, draws=range(2))
    assert found["adaptive"] < found["decoupled"] <= found["staggered"] + 0.02
    assert found["normalised"] >= found["staggered"] - 0.02


def test_a_lost_worker_is_adapted_around_unless_starting_the_job_again_is_cheaper() -> None:
    task = parse_state(STATE).task("gpt")
    assert task.pipeline is not None
    workers = task.pipeline.of_ranks([5], 16)
    assert workers == {(1, 1)} and task.pipeline.of_ranks([5], 17) is None
    first, second = priced_worker_loss(task, workers, 86_400)
    assert (first.kind, second.kind) == (AlternativeKind.ADAPT_PIPELINE, AlternativeKind.RESTART_IN_PLACE)
    # Away, slower, away while the worker is taken back, then as before; always over the same time.
    wafs = [segment.waf for segment in first.segments]
    assert wafs[0] == wafs[2] == 0 < wafs[1] < wafs[3] == task.worth(4)
    assert sum(segment.seconds for segment in first.segments) == sum(segment.seconds for segment in second.segments) == 86_400
    quick = priced_worker_loss(replace(task, transition_seconds=5.0), workers, 86_400)
    assert quick[0].kind is AlternativeKind.RESTART_IN_PLACE
    assert priced_worker_loss(replace(task, pipeline=replace(task.pipeline, sharded=True)), workers, 86_400) == ()


def test_plans_computed_ahead_say_what_adapting_costs_and_measured_times_how_long_it_takes() -> None:
    state = parse_state(STATE)
    task = replace(state.task("gpt"), adapt_seconds=3.0)
    asked: list[int] = []

    def periods(problem: Problem, failures: int) -> int:
        asked.append(failures)
        assert not problem.failed
        return 100 + 50 * failures

    assert task.pipeline is not None
    first = priced_worker_loss(task, {(1, 1)}, 86_400, periods)[0]
    assert asked == [0, 1]
    assert first.segments[0].seconds == 3.0 and first.segments[1].waf == pytest.approx(task.worth(4) / 1.5)
    whole = propose(state, [parse_trigger("node n2 lost")], periods=periods)
    assert whole.chosen.kind is AlternativeKind.ADAPT_PIPELINE and "period 300 against 100" in whole.why
    assert propose(state, [parse_trigger("node n2 lost")], adapter=never).chosen.kind is not AlternativeKind.ADAPT_PIPELINE
