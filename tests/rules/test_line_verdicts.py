"""Verdicts told by shape are those that looking at every line gives; what a signal rule finds is never dropped."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import rules.line_verdicts
from rules.line_verdicts import VerdictFinder
from rules.matcher import Matcher
from rules.pack import Rule, RuleRole
from rules.scan_verdicts import KEEP
from rules.shapes import precedence_of, shape_patterns
from tests.rules.test_compression import ROUTINE, SIGNAL, block_of, lines_of_examples, other_digits, shipped


def looked_at(matcher: Matcher, line: bytes) -> tuple[int, bool]:
    """The verdict and whether it is a signal, by looking at nothing but this line."""
    found = {hit.rule for hit in matcher.scan(line + b"\n")}
    if any(matcher.rules[index].role is not RuleRole.ROUTINE for index in found):
        return KEEP, True
    return min(found, key=precedence_of(matcher.rules).__getitem__, default=KEEP), False


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_every_verdict_is_the_one_that_a_look_at_the_line_gives(seed: int) -> None:
    whim = random.Random(seed)
    compiled = shipped()
    routine, every = lines_of_examples()
    pool = [whim.choice(routine) for _ in range(6)] + [whim.choice(every) for _ in range(6)]
    matcher = compiled.matcher()
    finder = VerdictFinder(matcher, compiled.shapes)
    for _ in range(5):
        lines = [other_digits(whim.choice(pool), whim) for _ in range(30)]
        verdicts = finder.find(block_of(lines))
        expected = [looked_at(matcher, line) for line in lines]
        assert verdicts.rules == [rule for rule, _ in expected]
        assert verdicts.signals == {index for index, (_, is_signal) in enumerate(expected) if is_signal}


def finder_of(rules: list[Rule]) -> VerdictFinder:
    return VerdictFinder(Matcher(rules), shape_patterns(rules))


def test_digits_on_which_a_signal_hangs_are_looked_at_every_time() -> None:
    finder = finder_of([ROUTINE, SIGNAL])
    lines = [b"request took %d ms, status %d" % (10 + n % 90, 503 if n == 77 else 200) for n in range(100)]
    found = [finder.find(block_of([line])) for line in lines]
    assert [index for index, verdicts in enumerate(found) if verdicts.rules == [KEEP]] == [77]
    assert [index for index, verdicts in enumerate(found) if verdicts.signals] == [77]


def test_ever_new_shapes_are_forgotten_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules.line_verdicts, "MAX_REMEMBERED_BYTES", 1000)
    monkeypatch.setattr(rules.line_verdicts, "MAX_SEEN", 10)
    finder = finder_of([ROUTINE, SIGNAL])
    for number in range(200):
        line = b"request took 12 ms, status 200 " + b"x" * number
        for _ in range(3):
            assert finder.find(block_of([line])).rules == [0]
        assert finder.remembered_bytes <= 1000 + 31 + number


def test_an_empty_block_holds_no_lines() -> None:
    assert finder_of([ROUTINE]).find(b"").rules == []
