"""The vote of remembered failures: who counts, and when it abstains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.memory import Calibration, Entry, Feedback, Origin, vote

DAY = 86_400.0


def entry(key: str, reason: str, *, days_ago: float = 0, feedback: Feedback = Feedback.NONE) -> Entry:
    return Entry(key, reason, "text", Origin.INCIDENT, -days_ago * DAY, feedback)


def test_a_close_neighbour_names_the_cause_and_the_case() -> None:
    verdict = vote([(entry("41", "nan_loss"), 0.97)], 0.0)
    assert (verdict.reason, verdict.neighbors[0].entry.key) == ("nan_loss", "41")
    assert "41" in verdict.why and verdict.confidence <= 0.95


def test_it_abstains_where_nothing_is_remembered() -> None:
    assert vote([], 0.0).why == "nothing alike is remembered"


def test_it_abstains_below_the_calibrated_similarity_and_says_how_far() -> None:
    verdict = vote([(entry("41", "nan_loss"), 0.80)], 0.0)
    assert verdict.reason is None and "0.80" in verdict.why and "0.86" in verdict.why


def test_it_abstains_where_the_closest_is_told_in_other_words() -> None:
    verdict = vote([(entry("41", "nan_loss"), 0.97)], 0.0, shared=lambda _entry: 0.4)
    assert verdict.reason is None and verdict.why == "the closest (41) is told in other words: 40% in common"
    assert [item.weight for item in verdict.neighbors] == [0.0]


def test_it_abstains_where_equally_close_cases_disagree() -> None:
    verdict = vote([(entry("1", "nan_loss"), 0.95), (entry("2", "cuda_out_of_memory"), 0.95)], 0.0)
    assert verdict.reason is None and "disagree" in verdict.why


def test_what_an_operator_called_wrong_does_not_count() -> None:
    assert vote([(entry("1", "nan_loss", feedback=Feedback.WRONG), 1.0)], 0.0).reason is None


def test_what_an_operator_confirmed_counts_more() -> None:
    near = [(entry("1", "nan_loss"), 0.95), (entry("2", "cuda_out_of_memory", feedback=Feedback.CONFIRMED), 0.95)]
    assert vote(near, 0.0).shares == pytest.approx({"nan_loss": 0.4, "cuda_out_of_memory": 0.6})


def test_old_cases_count_less() -> None:
    near = [(entry("1", "nan_loss", days_ago=540), 0.95), (entry("2", "cuda_out_of_memory"), 0.95)]
    assert vote(near, 0.0).reason == "cuda_out_of_memory"


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.floats(-1, 1), st.sampled_from(list(Feedback))), max_size=20))
def test_a_verdict_always_rests_on_a_close_neighbour_of_that_reason(cases: list[tuple[str, float, Feedback]]) -> None:
    calibration = Calibration()
    near = [(entry(str(n), reason, feedback=feedback), score) for n, (reason, score, feedback) in enumerate(cases)]
    verdict = vote(near, 0.0, calibration)
    if verdict.reason is not None:
        supporters = [item for item in verdict.neighbors if item.entry.reason == verdict.reason]
        assert max(item.similarity for item in supporters) >= calibration.least_similarity
        assert all(item.entry.feedback is not Feedback.WRONG for item in verdict.neighbors)
        assert (verdict.shares or {})[verdict.reason] >= calibration.least_share
