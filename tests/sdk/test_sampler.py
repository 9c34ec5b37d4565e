"""Batches by number: each sample once an epoch, and a skipped batch leaves every other one as it was."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop import protocol
from pitstop.sampler import Sampler, merged, permuted


@given(st.integers(1, 300), st.integers(0, 2**64 - 1))
def test_an_epoch_holds_every_sample_once(size: int, key: int) -> None:
    assert sorted(permuted(index, size, key) for index in range(size)) == list(range(size))


def test_epochs_and_seeds_differ_and_the_same_number_is_the_same_batch() -> None:
    one, two = Sampler(64, 8, seed=1), Sampler(64, 8, seed=2)
    assert one.ids(0) != one.ids(8) and one.ids(0) != two.ids(0)
    assert one.ids(5) == Sampler(64, 8, seed=1).ids(5)
    assert sorted(sample for number in range(8, 16) for sample in one.ids(number)) == list(range(64))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=5), st.integers(0, 40))
def test_skipping_loses_and_repeats_no_other_sample(intervals: list[tuple[int, int]], stop: int) -> None:
    sampler = Sampler(40, 4, seed=3, skip=intervals)
    seen = list(islice(sampler, stop))
    numbers = [number for number, _ in seen]
    expected = [number for number in range(200) if not any(first <= number < end for first, end in intervals)][:stop]
    assert numbers == expected
    assert all(ids == Sampler(40, 4, seed=3).ids(number) for number, ids in seen)


def test_a_restored_position_goes_on_with_the_batch_after_it_and_skips_what_either_says(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Sampler(40, 4, skip=[(2, 3)])
    for number, _ in first:
        if number == 4:
            first.position = number + 1
            state = json.loads(json.dumps(first.state_dict()))
            break
    monkeypatch.setenv(protocol.RESUME, json.dumps({"skip_batches": [[6, 8]]}))
    second = Sampler(40, 4)
    second.load_state_dict(state)
    assert [number for number, _ in islice(second, 3)] == [5, 8, 9]
    assert second.skip == [(2, 3), (6, 8)]


def test_a_state_loaded_inside_the_loop_moves_it() -> None:
    sampler, seen = Sampler(40, 4), []
    for number, _ in islice(sampler, 6):
        seen.append(number)
        if number == 3 and seen.count(3) == 1:
            sampler.load_state_dict({"position": 1, "skip": []})
    assert seen == [0, 1, 2, 3, 1, 2]


def test_intervals_are_merged() -> None:
    assert merged([(5, 9), (1, 3), (3, 4), (8, 10), (2, 2)]) == [(1, 4), (5, 10)]
    with pytest.raises(ValueError, match="batch of 9"):
        Sampler(8, 9)
