"""Error rates over many draws, beside the plain rule and DLRover's pairing."""

from __future__ import annotations

import random

import pytest

from recovery.localization.comparison import OURS, PLAIN, compare, dlrover_pairing, plain_two_rounds, wilson
from recovery.localization.probes import Pool, link_of
from recovery.localization.simulation import Cluster, FaultKind


@pytest.mark.parametrize("nodes", [8, 32])
def test_hard_faults_are_found_in_99_of_100_and_nothing_else_is_named(nodes: int) -> None:
    tally = compare(FaultKind.HARD, nodes, 0.1, 60, seed=3, peers=False).tallies[OURS]
    assert tally.precision >= 0.99
    assert tally.recall >= 0.99


def test_an_intermittent_fault_is_found_far_more_often_than_by_two_rounds() -> None:
    tallies = compare(FaultKind.INTERMITTENT_30, 16, 0.1, 40, seed=3).tallies
    assert tallies[OURS].recall > 0.85
    assert tallies[OURS].precision > 0.85
    assert tallies[PLAIN].recall < 0.3


def test_the_same_seed_gives_the_same_figures() -> None:
    first, second = (compare(FaultKind.HARD, 8, 0.1, 5, seed=1) for _ in range(2))
    assert first == second


def test_the_plain_rule_blames_who_fails_again_with_a_good_node() -> None:
    pool = Pool(("a", "b", "c", "d"))
    assert plain_two_rounds(Cluster(pool, {"b": FaultKind.HARD}), random.Random(1)) == {"b"}


def test_the_plain_rule_misses_a_bad_link() -> None:
    pool = Pool(("a", "b", "c", "d"))
    assert plain_two_rounds(Cluster(pool, links=frozenset({link_of("a", "b")})), random.Random(1)) == frozenset()


def test_dlrovers_pairing_names_failed_and_slow_nodes() -> None:
    pool = Pool(tuple("abcdefgh"))
    assert dlrover_pairing(Cluster(pool, {"c": FaultKind.HARD}), random.Random(1)) == {"c"}
    assert "slow c" in dlrover_pairing(Cluster(pool, {"c": FaultKind.SLOW}), random.Random(1))


def test_an_interval_holds_the_share_and_narrows_with_the_count() -> None:
    low, high = wilson(99, 100)
    assert low < 0.99 < high
    assert wilson(990, 1000)[0] > low
    assert wilson(0, 0) == (0.0, 1.0)
