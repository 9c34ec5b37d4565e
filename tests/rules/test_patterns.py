"""Patterns: one meaning in both engines, no crossing of newlines, and what can be known without running them."""

from __future__ import annotations

import string

import hypothesis.strategies as st
import pytest
import re2
from hypothesis import assume, given, settings

from rules.matcher import PatternSet, byte_options
from rules.pack import PackError, RuleRole, load_packs
from rules.patterns import Pattern, PatternError, parse_pattern

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "7",
        "0",
        " ",
        r"\d",
        r"\D",
        r"\s",
        r"\S",
        r"\w",
        r"\W",
        ".",
        "[a-c5]",
        "[^a]",
        "[^0-9]",
        r"[\s7]",
        r"\.",
        "é",
        "[αβ]",
    ]
)
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "+?"])
TEXTS = st.text(alphabet="ab7 0\n.é\t5α-", max_size=40)


@st.composite
def pattern_texts(draw: st.DrawFn, depth: int = 2) -> str:
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.integers(0, 5))
        if kind == 0 and depth:
            inner = draw(st.lists(pattern_texts(depth - 1), min_size=1, max_size=3))
            parts.append(f"(?:{'|'.join(inner)}){draw(REPEATS)}")
        elif kind == 1:
            parts.append(draw(st.sampled_from(["^", "$", r"\b"])))
        else:
            parts.append(draw(ATOMS) + draw(REPEATS))
    return f"(?i:{''.join(parts)})" if draw(st.integers(0, 4)) == 0 else "".join(parts)


def found_lines(pattern: Pattern, block: bytes) -> set[int]:
    expression = re2.compile(pattern.for_re2(), byte_options())
    return {index for index, line in enumerate(block.split(b"\n")[:-1]) if expression.search(line)}


@settings(max_examples=150, deadline=None)
@given(pattern_texts(), TEXTS)
def test_hyperscan_over_a_block_finds_exactly_the_lines_that_re2_finds_one_by_one(source: str, text: str) -> None:
    # The anchor literal keeps Hyperscan from refusing patterns that match the empty string.
    pattern = parse_pattern(f"zz(?:{source})")
    block = "".join(f"zz{line}\n" for line in text.split("\n")).encode()
    try:
        patterns = PatternSet([pattern.for_hyperscan()])
    except PackError:
        # Hyperscan takes no anchor in the middle, and says so.
        assume(False)
    assert {line for line, _ in patterns.find(block)} == found_lines(pattern, block)


@settings(max_examples=200, deadline=None)
@given(pattern_texts(), TEXTS, st.randoms(use_true_random=False))
def test_a_digit_blind_pattern_finds_at_least_the_same_lines_whatever_the_digits_are(
    source: str, text: str, random: object
) -> None:
    pattern = parse_pattern(source)
    blind = pattern.digit_blind()
    block = (text + "\n").encode()
    zeroed = block.translate(bytes.maketrans(b"123456789", b"0" * 9))
    assert found_lines(pattern, block) <= found_lines(blind, block)
    assert found_lines(blind, block) == found_lines(blind, zeroed)
    if pattern.is_digit_blind:
        assert found_lines(pattern, block) == found_lines(pattern, zeroed)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=string.printable, max_size=40))
def test_any_text_is_read_as_a_pattern_or_refused_in_words(source: str) -> None:
    try:
        pattern = parse_pattern(source)
    except PatternError as error:
        assert str(error)
        return
    pattern.for_hyperscan(), pattern.for_re2(), pattern.longest_literal, pattern.is_digit_blind


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("foo\nbar", "newline"),
        (r"first\nsecond", "newline"),
        ("(?s)foo.bar", "flags"),
        ("foo(?=bar)", "look-around"),
        (r"(a)\1", "back-references"),
        ("(a{900}){900}", "add up"),
        ("a{2000}", "RE2"),
        ("[[:digit:]]x", "nested"),
        ("(" * 1500, "not a pattern|nested"),
        ("x" * 3000, "longer"),
        ("foo(", "not a pattern"),
        ("[^é]", "ASCII"),
    ],
)
def test_what_one_engine_lacks_is_refused_in_words(source: str, words: str) -> None:
    with pytest.raises(PatternError, match=words):
        parse_pattern(source)


@pytest.mark.parametrize(
    ("source", "literal"),
    [
        (r"NVRM: Xid \(PCI:[^)]+\): 79,", "NVRM: Xid (PCI:"),
        (r"(?:timeout|timed out) after", " after"),
        (r"(?:connection )?refused", "refused"),
        (r"ab(?:cd)ef", "abcdef"),
        (r"(?:abcd|abcdef)+x", "abcd"),
        (r"\d+ \w+", " "),
        (r"x{5}y", "xxxxxy"),
        (r"a \.{3,}b", "a ..."),
    ],
)
def test_the_literal_is_what_every_match_contains(source: str, literal: str) -> None:
    assert parse_pattern(source).longest_literal == literal


@pytest.mark.parametrize("source", [r"error.*", r"rank \d+", r"a(?:b|c+)", r"(?:foo x*)"])
def test_an_open_repeat_at_the_end_is_seen(source: str) -> None:
    assert parse_pattern(source).ends_in_open_repeat


def test_an_anchored_or_bounded_end_is_not_an_open_repeat() -> None:
    assert not any(parse_pattern(source).ends_in_open_repeat for source in (r"rank \d+$", r"rank \d{1,3}", r"\d+\b", "x"))


def test_no_routine_pattern_hangs_on_a_word_boundary_that_unknown_digits_may_make() -> None:
    """Such lines, which are most of a log, would be looked at one by one."""
    patterns = [pattern for rule in load_packs() if rule.role is RuleRole.ROUTINE for pattern in rule.any]
    assert [pattern for pattern in patterns if parse_pattern(pattern).with_any_digit(True) is None] == []
