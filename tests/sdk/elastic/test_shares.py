"""Who computes what, and how members that stand at different points come together."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from pitstop.elastic.shares import Standing, first_shares, judge_standing, redistributed


@given(st.integers(1, 40), st.sets(st.integers(0, 9), min_size=2, max_size=6), st.integers(0, 2**32))
def test_whatever_is_lost_every_micro_batch_is_computed_exactly_once(count: int, members: set[int], seed: int) -> None:
    draw = random.Random(seed)
    shares = first_shares(count, sorted(members))
    assert sorted(number for numbers in shares.values() for number in numbers) == list(range(count))
    done = {member: {number for number in shares[member] if draw.random() < 0.5} for member in members}
    while len(members) > 1:
        members = members - {draw.choice(sorted(members))}
        done = {member: done[member] for member in members}
        before = shares
        shares = redistributed(count, done, before)  # type: ignore[arg-type]
        held = sorted(number for numbers in done.values() for number in numbers)
        left = sorted(number for numbers in shares.values() for number in numbers)
        assert sorted(held + left) == list(range(count))
        for member in members:
            assert {number for number in before[member] if number not in done[member]} <= set(shares[member])
            done[member] = done[member] | {number for number in shares[member] if draw.random() < 0.5}


@given(st.integers(1, 60), st.integers(2, 8))
def test_no_survivor_computes_more_than_its_round_robin_share_of_what_was_lost(count: int, size: int) -> None:
    shares = first_shares(count, range(size))
    done = {member: set(shares[member]) for member in range(1, size)}
    extra = redistributed(count, done, shares)  # type: ignore[arg-type]
    assert max(len(numbers) for numbers in extra.values()) <= -(-len(shares[0]) // (size - 1))


def standing(member: int, step: int, reduced: int = 0, state: int = 1) -> Standing:
    return Standing(member, step, (), reduced, 3, state)


def test_buckets_reduced_by_all_are_used_and_no_others() -> None:
    assert judge_standing([standing(0, 4, 3), standing(2, 4, 1)]).reduced == 1
    assert judge_standing([standing(0, 4, 3), standing(2, 4, 3)]).reduced == 3


def test_one_that_missed_the_agreement_applies_the_step_that_others_have_committed() -> None:
    verdict = judge_standing([standing(0, 5, 2, state=2), standing(1, 4, 3, state=1)])
    assert (verdict.step, verdict.behind, verdict.reduced, verdict.problem) == (5, (1,), 0, "")


def test_a_step_committed_without_a_members_reduction_is_a_mismatch() -> None:
    assert "have not reduced step 4" in judge_standing([standing(0, 5), standing(1, 4, 2)]).problem


def test_replicas_that_differ_are_never_joined() -> None:
    assert "differ" in judge_standing([standing(0, 4, state=1), standing(1, 4, state=2)]).problem
    assert "differ" in judge_standing([standing(0, 5), standing(1, 4, 3), standing(2, 3, 3)]).problem


def test_a_member_without_a_state_takes_a_living_ones() -> None:
    verdict = judge_standing([standing(0, -1), standing(1, 4, 3), standing(2, 4, 3)])
    assert (verdict.step, verdict.fresh, verdict.source, verdict.reduced) == (4, (0,), 1, 0)
