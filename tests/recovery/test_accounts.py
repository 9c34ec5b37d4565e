"""Accounts: every second of a job is told once, and what a failure cost is what the story says it cost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.accounts import DOWN, Generation, JobRecord, Outcome, Phase, Report, account, days_of

LOST = (*DOWN, Phase.RECOMPUTING)


def story(*, outcome: Outcome = Outcome.RUNNING, until: float = 2000.0, gpus: int = 8) -> JobRecord:
    """Steps of a second from t=10; rank killed at 600; back at 660 from step 500, past step 589 at 750."""
    first = Generation(0, 8, 0.0, first_step=0, first_step_at=10.0, last_step=589, alive_at=599.0, step_seconds=1.0)
    second = Generation(1, gpus, 640.0, first_step=500, first_step_at=660.0, last_step=1839, alive_at=1999.0, caught_up_at=750.0)
    report = Report(reported_at=602.0, exited_at=600.0, diagnosed_at=605.0, decided_at=606.0)
    return JobRecord("gpt", (first, second), {0: report}, until, outcome)


def test_a_crash_is_divided_into_its_phases() -> None:
    told = account(story())
    (loss,) = told.losses
    assert [loss.seconds[phase] for phase in LOST] == [2.0, 3.0, 1.0, 54.0, 90.0]
    assert (loss.ran_seconds, loss.restart_seconds, loss.recomputed_steps) == (600.0, 60.0, 90)
    assert loss.lost_gpu_seconds == 8 * 150.0
    assert told.seconds(Phase.STARTING) == 10.0
    assert told.ettr == pytest.approx((2000 - 10 - 150) / 2000)
    assert told.steps == 1840


def test_a_hang_counts_from_where_nothing_moved_any_more_not_from_where_the_timeout_struck() -> None:
    record = story()
    hung = Report(reported_at=2402.0, exited_at=2400.0)
    after = Generation(1, 8, 2460.0, first_step=500, first_step_at=2470.0, last_step=900, alive_at=2900.0, step_seconds=1.0)
    told = account(JobRecord("gpt", (record.generations[0], after), {0: hung}, 3000.0))
    assert told.losses[0].stopped_at == 600.0
    assert told.losses[0].seconds[Phase.DETECTION] == 1802.0


def test_gpus_that_are_missing_after_a_failure_are_charged_to_it_until_they_are_back() -> None:
    shrunk = story(gpus=6)
    grown = Generation(2, 8, 3000.0, first_step=1840, first_step_at=3010.0, last_step=3000, alive_at=4000.0, step_seconds=1.0)
    told = account(JobRecord("gpt", (*shrunk.generations, grown), shrunk.reports, 4000.0))
    first, second = told.losses
    # From the start at 640 to the start at 3000 two GPUs were missing.
    assert first.missing_gpu_seconds == 2 * 2360.0
    assert second.missing_gpu_seconds == 0.0
    assert told.goodput is not None and told.ettr is not None and told.goodput < told.ettr


def test_what_is_still_open_counts_up_to_now_in_the_phase_that_it_is_in() -> None:
    record = story()
    diagnosing = Report(reported_at=602.0, exited_at=600.0)
    told = account(JobRecord("gpt", record.generations[:1], {0: diagnosing}, 700.0))
    assert told.losses[0].seconds[Phase.DIAGNOSIS] == 98.0
    assert told.losses[0].restart_seconds is None


def test_a_warning_after_which_the_job_went_on_costs_nothing() -> None:
    record = story()
    told = account(JobRecord("gpt", record.generations[:1], {0: Report(reported_at=300.0)}, 599.0))
    assert told.losses == ()
    assert account(JobRecord("gpt", record.generations[:1], {0: Report(590.0)}, 620.0, Outcome.DONE)).losses == ()


def test_a_generation_that_fails_before_it_has_caught_up_was_all_repetition() -> None:
    record = story()
    short = Generation(1, 8, 640.0, first_step=500, first_step_at=660.0, last_step=520, alive_at=680.0, step_seconds=1.0)
    third = Generation(2, 8, 700.0, first_step=500, first_step_at=710.0, last_step=700, alive_at=910.0, step_seconds=1.0)
    reports = {**record.reports, 1: Report(681.0, 680.0)}
    told = account(JobRecord("gpt", (record.generations[0], short, third), reports, 911.0))
    assert [loss.recomputed_steps for loss in told.losses] == [21, 90]
    assert told.seconds(Phase.RECOMPUTING) == pytest.approx(20.0 + 90.0)


def test_an_agent_that_restarts_by_itself_is_not_charged_for_a_diagnosis_that_came_later() -> None:
    record = story()
    report = Report(reported_at=602.0, exited_at=600.0, diagnosed_at=900.0, decided_at=901.0)
    loss = account(JobRecord("gpt", record.generations, {0: report}, 2000.0)).losses[0]
    assert loss.seconds[Phase.DIAGNOSIS] == 38.0
    assert loss.seconds[Phase.DECISION] == 0.0
    assert loss.seconds[Phase.TRANSITION] == 20.0


def test_a_job_that_reports_no_steps_has_its_downtime_and_no_recomputed_steps() -> None:
    generations = (Generation(0, 4, 0.0), Generation(1, 4, 130.0))
    told = account(JobRecord("silent", generations, {0: Report(101.0, 100.0)}, 500.0))
    assert told.losses[0].recomputed_steps is None
    assert told.losses[0].restart_seconds == 30.0
    assert told.seconds(Phase.PRODUCTIVE) == 470.0


def test_spans_are_cut_at_midnight() -> None:
    told = account(story(until=200_000.0))
    cut = list(days_of(told.spans))
    assert {day for day, _ in cut} == {0, 1, 2}
    assert sum(span.seconds for _, span in cut) == pytest.approx(told.wall_seconds)
    assert all(day * 86_400 <= span.start and span.end <= (day + 1) * 86_400 for day, span in cut)


moments = st.floats(-100, 2000, allow_nan=False, width=32)
maybe = st.none() | moments
steps = st.none() | st.integers(0, 500)


@st.composite
def records(draw: st.DrawFn) -> JobRecord:
    """Anything at all: clocks that jump, reports without order, steps that go back, sizes that change."""
    generations = []
    for number in range(draw(st.integers(1, 6))):
        low, high = draw(steps), draw(steps)
        generations.append(
            Generation(
                number, draw(st.integers(1, 64)), draw(moments), low, None if low is None else draw(moments),
                None if low is None else max(low, high or 0), draw(maybe), draw(st.none() | st.floats(0.01, 100)), draw(maybe),
            )
        )  # fmt: skip
    report = st.builds(Report, moments, maybe, maybe, maybe)
    reports = draw(st.dictionaries(st.integers(0, 6), report, max_size=6))
    until = max(draw(moments), generations[0].started_at)
    return JobRecord("any", tuple(generations), reports, until, draw(st.sampled_from(list(Outcome))))


@given(records())
def test_an_account_adds_up_to_the_wall_clock_whatever_it_is_told(record: JobRecord) -> None:
    told = account(record)
    wall = record.until - record.generations[0].started_at
    assert sum(span.seconds for span in told.spans) == pytest.approx(wall, abs=1e-6)
    assert all(one.end == other.start for one, other in pairwise(told.spans))
    assert all(span.seconds > 0 for span in told.spans)
    lost = sum(sum(loss.seconds.values()) for loss in told.losses)
    kept = told.seconds(Phase.STARTING) + told.seconds(Phase.PRODUCTIVE)
    assert lost + kept == pytest.approx(wall, abs=1e-6)
    held = sum(span.seconds * span.gpus for span in told.spans if span.phase in (Phase.STARTING, Phase.PRODUCTIVE))
    every = sum(span.seconds * (span.gpus + span.missing) for span in told.spans)
    assert held + sum(loss.lost_gpu_seconds for loss in told.losses) == pytest.approx(every, abs=1e-3)
