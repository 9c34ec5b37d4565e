"""Conditions: whether a match has them near is told from runs of places as it is from the places one by one."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from detectors.reading import conditions
from detectors.reading.conditions import ConditionLog
from detectors.reading.ledger import Match
from rules.matcher import Clause, Hit
from rules.pack import Rule, RuleRole
from rules.sightings import Conditions
from rules.signal import Line

WINDOW = 3
RULE = Rule(code="T", title="", pack="t", role=RuleRole.ROOT, reason=None, any=("a",), none=("b",), window=WINDOW)
HIT = Hit(0, 0, Clause.NONE, 0)
CONDITIONS = Conditions(((0, Clause.NONE, 0),))
RANKS = st.sampled_from([None, 0, 1])
Place = tuple[int, int | None]


def match(number: int, rank: int | None) -> Match:
    return Match(0, number, rank, None, {}, lambda: Line("", number))


def near(places: list[Place], number: int, rank: int | None) -> bool:
    ranks = {other for _, other in [*places, (number, rank)] if other is not None}
    reach = WINDOW * max(1, len(ranks))
    return any(abs(place - number) <= reach and (rank is None or other in (None, rank)) for place, other in places)


def runs_of(places: list[Place]) -> list[tuple[int, int, int | None]]:
    """Places of each rank put together as far as a rule's `run_gap` lets them."""
    runs: list[tuple[int, int, int | None]] = []
    for rank in (None, 0, 1):
        own = sorted(place for place, other in places if other == rank)
        for place in own:
            if runs and runs[-1][2] == rank and place - runs[-1][1] <= RULE.run_gap:
                runs[-1] = (runs[-1][0], place, rank)
            else:
                runs.append((place, place, rank))
    return runs


@given(st.lists(st.tuples(st.integers(1, 60), RANKS), max_size=25), st.integers(1, 60), RANKS, st.booleans())
def test_a_match_has_a_condition_near_exactly_where_one_of_its_places_is(
    places: list[Place], number: int, rank: int | None, as_runs: bool
) -> None:
    log = ConditionLog([RULE])
    for first, last, other in runs_of(places) if as_runs else ():
        log.note_run(CONDITIONS, first, last, other)
    for place, other in sorted(places, key=lambda item: item[0]) if not as_runs else ():
        log.note(HIT, place, other)
    log.hold(match(number, rank))
    assert bool(list(log.settled(None))) is not near(places, number, rank)


def test_places_that_no_match_can_reach_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "MAX_UNSORTED", 8)
    monkeypatch.setattr(conditions, "MAX_RUNS", 8)
    log = ConditionLog([RULE])
    for number in range(0, 100_000, 20):
        log.note_run(CONDITIONS, number, number, None)
        log.note(HIT, number + 10, 0)
        list(log.settled(number + 11))
    assert sum(len(runs) for kept in (log._unsorted, *log._runs.values()) for runs in kept.values()) < 40
    log.hold(match(99_999, 0))
    log.hold(match(99_992, 0))
    assert [found.number for found in log.settled(None)] == [99_999]
