"""Ranks that are killed at every point of a step, for real: the others go on in their process, and the training is the same."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.elastic.former import Former
from tests.sdk.elastic.ranks import ledger

SCALE = float(os.environ.get("SCALE", "0.1"))
STEPS = 8


@pytest.fixture
def former(tmp_path: Path) -> Iterator[Former]:
    made = Former(tmp_path, 3)
    yield made
    made.end()


def check(found: list[dict[str, Any]], seed: int, steps: int = STEPS) -> None:
    assert found
    assert len({item["checksum"] for item in found}) == 1, "the replicas differ"
    for item in found:
        assert item["first"] == item["last"] == ledger(steps, seed), "a sample was lost or taken twice"


def faultless(folder: Path, seed: int, **options: Any) -> list[float]:
    folder.mkdir()
    alone = Former(folder, 3)
    alone.start(STEPS, seed, {}, **options)
    found = alone.watch()
    check(found, seed)
    return found[0]["body"]


# Those that tell the most come with every change, the others with the soak.
ALWAYS, SOAK = pytest.mark.acceptance, pytest.mark.soak


@pytest.mark.parametrize(
    ("where", "number"),
    [
        pytest.param("forward", 1, marks=ALWAYS),
        pytest.param("bucket", 2, marks=ALWAYS),
        pytest.param("agreed", 0, marks=ALWAYS),
        pytest.param("bucket", 0, marks=SOAK),
        pytest.param("reduced", 0, marks=SOAK),
        pytest.param("backward", 2, marks=SOAK),
        pytest.param("optimizer", 0, marks=SOAK),
    ],
)
def test_a_rank_killed_inside_a_step_costs_no_sample_and_no_step(former: Former, where: str, number: int) -> None:
    former.start(STEPS, 5, {1: (4, where, number)})
    found = former.watch()
    assert [item["rank"] for item in found] == [0, 2]
    check(found, 5)
    assert all(item["reformed"] == 1 for item in found)


@pytest.mark.acceptance
def test_a_rank_that_lost_its_group_holds_up_none_of_those_who_wait_for_it(former: Former) -> None:
    former.start(STEPS, 5, {1: (4, "left", 1)})
    found = former.watch(120)
    assert [item["rank"] for item in found] == [0, 1, 2]
    check(found, 5)
    assert all(item["reformed"] == 1 for item in found)


@pytest.mark.acceptance
def test_what_is_left_of_a_step_is_shared_out_and_the_sum_is_the_same(former: Former, tmp_path: Path) -> None:
    expected = faultless(tmp_path / "faultless", 6)
    former.start(STEPS, 6, {1: (4, "forward", 2)})
    found = former.watch()
    check(found, 6)
    assert max(abs(one - two) for one, two in zip(found[0]["body"], expected, strict=True)) < 1e-9


@pytest.mark.soak
@pytest.mark.whole
def test_two_losses_one_after_the_other_leave_one_rank_that_finishes(former: Former) -> None:
    former.start(STEPS, 7, {0: (2, "bucket", 1), 2: (4, "reduced", 0)})
    found = former.watch()
    assert [item["rank"] for item in found] == [1]
    check(found, 7)


# Micro-batches of a rank, and buckets of the model.
PARTS = {"forward": 4, "backward": 4, "bucket": 3}


# In four pieces, each of its own seed: 200 kills at SCALE=1.
@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.parametrize("piece", range(4))
def test_kills_at_random_instants_are_all_survived(tmp_path: Path, piece: int) -> None:
    draw = random.Random(12 + piece)
    kills = survived = 0
    while kills < 50 * SCALE:
        folder = tmp_path / str(kills)
        folder.mkdir()
        former = Former(folder, 3)
        places = ["forward", "backward", "bucket", "reduced", "agreed", "optimizer", "after"]
        where = places[kills % len(places)]
        seed, rank = draw.randrange(1 << 30), draw.randrange(3)
        if where == "after":
            fate: tuple[Any, ...] = ("after", draw.uniform(0.0, 0.08))
        else:
            fate = (draw.randrange(STEPS), where, draw.randrange(PARTS.get(where, 1)))
        try:
            former.start(STEPS, seed, {rank: fate}, pause=0.001)
            found = former.watch()
        finally:
            former.end()
        kills += 1
        # At a moment of the clock a rank may be at its end already.
        assert len(found) == 2 or where == "after"
        check(found, seed)
        survived += 1
    assert survived == kills
    print(f"{survived} of {kills} kills survived")
