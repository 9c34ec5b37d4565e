"""The matcher: which lines, each pattern once a line, and captures from the beginning of the line."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rules.matcher import MAX_CAPTURE_BYTES, Clause, Hit, Matcher
from rules.pack import PackError, Rule, RuleRole


def rule(code: str, *patterns: str, captures: tuple[str, ...] = (), none: tuple[str, ...] = ()) -> Rule:
    return Rule(code=code, title="", pack="test", role=RuleRole.CONTEXT, reason=None, any=patterns, captures=captures, none=none)


@given(st.lists(st.sampled_from(["", "x", "boom", "a boom and a boom", "boo", "\r boom", "bo\x00om", "bäng"]), max_size=30))
def test_hits_carry_the_index_of_their_line(lines: list[str]) -> None:
    block = "".join(line + "\n" for line in lines).encode()
    hits = list(Matcher([rule("A", "boom", "bäng")]).scan(block))
    assert hits == [
        Hit(index, 0, Clause.ANY, ordinal)
        for index, line in enumerate(lines)
        for ordinal, word in enumerate(("boom", "bäng"))
        if word in line
    ]


def test_a_pattern_is_reported_once_a_line_however_often_it_ends() -> None:
    matcher = Matcher([rule("A", r"fail.*")])
    assert [hit.line for hit in matcher.scan(b"fail" + b"x" * 1000 + b"\nfail fail fail\n")] == [0, 1]


def test_no_pattern_crosses_a_newline() -> None:
    matcher = Matcher([rule("A", r"one\s+two"), rule("B", r"one[^x]two"), rule("C", r"one\Dtwo"), rule("D", r"one\W*two")])
    assert not list(matcher.scan(b"one\ntwo\none\n\ntwo\n"))
    assert len(list(matcher.scan(b"one two\n"))) == 4


def test_anchors_are_those_of_the_line() -> None:
    matcher = Matcher([rule("A", r"^start"), rule("B", r"stop$")])
    assert [(hit.rule, hit.line) for hit in matcher.scan(b"start\nx start stop\nstop x\nstop\n")] == [(0, 0), (1, 1), (1, 3)]


@given(st.text("a429x .1", max_size=40), st.text("a429", min_size=1, max_size=4))
def test_numbers_between_an_open_gap_and_a_long_literal_are_found(gap: str, number: str) -> None:
    pattern = r"HTTP Request: .*[0-9]{3} Too Many Requests"
    line = f"HTTP Request: {gap}{number} Too Many Requests"
    assert bool(list(Matcher([rule("A", pattern)]).scan(line.encode() + b"\n"))) == bool(re.search(pattern, line))


def test_a_line_without_its_newline_is_still_a_line() -> None:
    assert [hit.line for hit in Matcher([rule("A", "boom$")]).scan(b"x\nboom")] == [1]


def test_clauses_are_told_apart() -> None:
    matcher = Matcher([rule("A", "boom", none=("all is well",))])
    assert list(matcher.scan(b"boom\nall is well\n")) == [Hit(0, 0, Clause.ANY, 0), Hit(1, 0, Clause.NONE, 0)]


def test_captures_read_the_beginning_of_a_long_line_only() -> None:
    matcher = Matcher([rule("A", "rank", captures=(r"rank (?P<rank>\d+)", r"on (?P<node>\S+)"))])
    assert matcher.captures(0, "rank 7 on n\udcff3") == {"rank": "7", "node": "n�3"}
    assert matcher.captures(0, "é" * MAX_CAPTURE_BYTES + "rank 7") == {}


def test_the_first_value_of_a_name_stands() -> None:
    matcher = Matcher([rule("A", "rank", captures=(r"rank (?P<rank>\d+)", r"peer (?P<rank>\d+)"))])
    assert matcher.captures(0, "peer 3 rank 7") == {"rank": "7"}


def test_a_pattern_on_which_a_backtracking_engine_is_exponential_takes_no_time() -> None:
    matcher = Matcher([rule("A", r"(?:a+)+b", captures=(r"(?P<x>(?:a+)+)b",))])
    assert not list(matcher.scan(b"a" * 20_000 + b"\n"))
    assert matcher.captures(0, "a" * 16_000) == {}


def test_a_bad_pattern_names_its_rule() -> None:
    with pytest.raises(PackError, match="rule A: pattern 'a\\(': "):
        Matcher([rule("A", "a(")])


def test_no_rules_find_nothing() -> None:
    assert not list(Matcher([]).scan(b"anything\n"))
