"""The limit of a world follows what probes take on the machines that are probed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from recovery.localization.limits import FIRST_WORLD_SECONDS, alone_limit, world_limit

times = st.lists(st.floats(0.01, 10.0), max_size=16)


def test_a_dead_peer_is_given_up_sooner_once_worlds_have_passed_quickly():
    first = world_limit(FIRST_WORLD_SECONDS, [0.4, 0.5, 0.6], True)
    assert first == 4.0
    limits = [first]
    for _ in range(3):
        limits.append(world_limit(limits[-1], [0.2, 0.3], False))
    assert limits == [4.0, 2.0, 1.0, 1.0]


def test_a_silent_node_is_waited_for_less_once_the_others_were_measured():
    assert alone_limit(0, FIRST_WORLD_SECONDS) == 5.0
    assert alone_limit(1, 4.8) == 2.4
    assert alone_limit(2, 1.0) == 2.0
    assert alone_limit(1, 20.0) == 5.0


def test_machines_that_become_busy_get_more_time_at_once():
    assert world_limit(1.0, [0.3, 1.5], False) == 4.5


@given(st.lists(times, min_size=1, max_size=8))
def test_what_passes_has_twice_its_time_next_up_to_the_longest_limit(batches):
    limit, limits = FIRST_WORLD_SECONDS, [FIRST_WORLD_SECONDS]
    for took in batches:
        limit = world_limit(limit, took, False)
        limits.append(limit)
        assert 1.0 <= limit <= 6.0 and limit >= min(6.0, 2 * max(took, default=0.0))
    assert all(after >= before / 2 for before, after in pairwise(limits))
