"""When a job hangs, and who is to blame."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.statistics.hang import HangLimits, ProcessState, RankPulse, judge_hang

WAITING = RankPulse(0, 100, "step", 3.6, mean_seconds=1.0, longest_seconds=1.2)


def job(count: int = 4, **fields: object) -> list[RankPulse]:
    return [replace(WAITING, rank=rank, **fields) for rank in range(count)]  # type: ignore[arg-type]


def test_a_step_within_three_means_and_the_floor_is_no_hang() -> None:
    assert judge_hang(job(elapsed_seconds=3.2)) is None


def test_the_stopped_process_is_named_and_not_those_that_wait_for_it() -> None:
    pulses = job()
    pulses[2] = replace(pulses[2], state=ProcessState.STOPPED)
    found = judge_hang(pulses)
    assert found is not None and found.rank == 2 and found.firm
    assert "stopped, 3 others wait" in found.why and found.limit == 3.3


def test_the_rank_that_burns_the_processor_alone_is_named() -> None:
    pulses = job()
    pulses[3] = replace(pulses[3], state=ProcessState.BUSY)
    found = judge_hang(pulses)
    assert found is not None and found.rank == 3 and found.firm


@pytest.mark.parametrize("state", [ProcessState.IDLE, ProcessState.BUSY])
def test_when_all_ranks_look_alike_nobody_is_named_and_time_has_to_confirm(state: ProcessState) -> None:
    found = judge_hang(job(state=state))
    assert found is not None and found.rank is None and not found.firm
    later = judge_hang(job(state=state, elapsed_seconds=41.0))
    assert later is not None and later.firm


def test_the_rank_that_is_behind_is_named() -> None:
    pulses = job()
    pulses[1] = replace(pulses[1], step=99, section="outside", outside=True, elapsed_seconds=5.0)
    found = judge_hang(pulses)
    assert found is not None and found.rank == 1


def test_a_section_without_a_mean_has_a_long_limit_of_its_own() -> None:
    assert judge_hang(job(section="first_step", mean_seconds=None, elapsed_seconds=900.0)) is None
    assert judge_hang(job(section="first_step", mean_seconds=None, elapsed_seconds=1801.0)) is not None


def test_an_evaluation_that_nobody_marked_is_no_hang_while_all_are_in_it() -> None:
    assert judge_hang(job(section="outside", outside=True, elapsed_seconds=600.0)) is None


def test_a_step_that_once_took_long_is_measured_against_the_longest() -> None:
    assert judge_hang(job(longest_seconds=10.0, elapsed_seconds=14.0)) is None
    assert judge_hang(job(longest_seconds=10.0, elapsed_seconds=15.5)) is not None


def test_a_job_that_no_longer_moves_is_no_matter_of_one_late_rank_that_others_outrun() -> None:
    pulses = job(elapsed_seconds=0.1)
    pulses[0] = replace(pulses[0], step=40, elapsed_seconds=60.0)
    found = judge_hang(pulses)
    assert found is not None and found.rank == 0, "independent ranks are judged one by one"


def test_ranks_that_wait_for_one_that_still_works_are_no_hang() -> None:
    pulses = job(section="sync", mean_seconds=0.01, longest_seconds=0.02, elapsed_seconds=0.5)
    pulses[2] = replace(WAITING, rank=2, elapsed_seconds=1.5, state=ProcessState.BUSY)
    assert judge_hang(pulses) is None


@given(
    elapsed=st.floats(0, 1e4),
    mean=st.floats(1e-4, 1e3),
    states=st.lists(st.sampled_from(ProcessState), min_size=1, max_size=6),
)
def test_nothing_is_said_before_the_limit_whatever_the_processes_look_like(
    elapsed: float, mean: float, states: list[ProcessState]
) -> None:
    limits = HangLimits()
    pulses = [
        replace(WAITING, rank=rank, elapsed_seconds=elapsed, mean_seconds=mean, longest_seconds=mean, state=state)
        for rank, state in enumerate(states)
    ]
    found = judge_hang(pulses, limits)
    assert (found is not None) == (elapsed > 3 * mean + 0.3)
