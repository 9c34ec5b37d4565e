"""What a scan's matches say of each line: both forms agree, whatever order the matches come in."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rules.scan_verdicts import CONDITION, KEEP, SIGNAL, PythonVerdicts, Verdicts, new_verdicts

ROUTINE = 5
STANDINGS = [3, SIGNAL, 0, CONDITION, 4]


def test_a_signal_stands_before_routine_and_the_preferred_rule_before_others() -> None:
    verdicts = new_verdicts(STANDINGS, ROUTINE, True)
    verdicts.open([b"routine", b"", b"failing", b"both", b"none of them"])
    for end, pattern in ((5, 4), (7, 0), (8, 2), (12, 1), (16, 0), (18, 0), (21, 3), (21, 1)):
        verdicts.found(pattern, 0, end, 0, None)
    assert verdicts.close() == ([3, 0, KEEP, KEEP, KEEP], [(2, 12, 1), (3, 21, 3), (3, 21, 1)])


@pytest.mark.parametrize("form", [new_verdicts, PythonVerdicts])
def test_a_pattern_that_ends_at_many_places_of_a_line_is_noted_once(form: Callable[..., Verdicts]) -> None:
    verdicts = form(STANDINGS, ROUTINE, True)
    verdicts.open([b"progress bar", b"progress bar"])
    for end in (*range(5, 12), *range(18, 24)):
        verdicts.found(1, 0, end, 0, None)
    assert verdicts.close()[1] == [(0, 5, 1), (1, 18, 1)]


@pytest.mark.parametrize("conditions", [True, False])
def test_both_forms_agree_on_matches_in_any_order(conditions: bool) -> None:
    whim = random.Random(3)
    lines = [b"x" * whim.randrange(6) for _ in range(40)]
    fast, plain = new_verdicts(STANDINGS, ROUTINE, conditions), PythonVerdicts(STANDINGS, ROUTINE, conditions)
    for _ in range(3):
        fast.open(lines)
        plain.open(lines)
        for _ in range(60):
            found = (whim.randrange(5), 0, whim.randrange(len(b"\n".join(lines)) + 1), 0, None)
            fast.found(*found)
            plain.found(*found)
        assert fast.close() == plain.close()


@pytest.mark.parametrize(("pattern", "end"), [(5, 0), (0, 4), (-1, 0)])
def test_a_match_beyond_the_lines_or_patterns_is_refused(pattern: int, end: int) -> None:
    verdicts = new_verdicts(STANDINGS, ROUTINE, True)
    if isinstance(verdicts, PythonVerdicts):
        pytest.skip("rules/_sifter.c was not built here: no C compiler at installation")
    verdicts.open([b"abc"])
    with pytest.raises((ValueError, OverflowError)):
        verdicts.found(pattern, 0, end, 0, None)
