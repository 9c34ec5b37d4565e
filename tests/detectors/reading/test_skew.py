"""Clock skew between ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from detectors.reading.skew import StepPoint, clock_offsets


def points(offsets: dict[int, float], steps: int = 5) -> list[StepPoint]:
    return [StepPoint(rank, step, 1000.0 + 3 * step + offset) for step in range(steps) for rank, offset in offsets.items()]


def test_a_clock_that_runs_ahead_at_every_step_is_measured() -> None:
    assert clock_offsets(points({0: 0.0, 1: 0.1, 2: -40.0, 3: 0.0, 4: 90.0})) == {2: -40.0, 4: 90.0}


def test_two_ranks_cannot_tell_whose_clock_is_wrong() -> None:
    assert clock_offsets(points({0: 0.0, 1: 50.0})) == {}


def test_one_late_step_is_a_slow_rank_and_no_skew() -> None:
    late = [
        *points({0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}),
        StepPoint(3, 9, 1100.0),
        *(StepPoint(rank, 9, 1027.0) for rank in range(3)),
    ]
    assert clock_offsets(late) == {}


def test_a_rank_that_falls_behind_more_and_more_is_slow_and_not_skewed() -> None:
    drifting = [StepPoint(3, step, 1000.0 + 3 * step + 5 * step) for step in range(6)]
    assert 3 not in clock_offsets([*points({0: 0.0, 1: 0.0, 2: 0.0}, 6), *drifting])


@given(st.lists(st.builds(StepPoint, st.integers(0, 5), st.integers(0, 5), st.floats(0, 1e10)), max_size=60))
def test_the_middle_of_the_ranks_is_never_moved(found: list[StepPoint]) -> None:
    assert all(abs(offset) >= 2.0 for offset in clock_offsets(found).values())
