"""What exit statuses say."""

from __future__ import annotations

import pytest

from detectors.supervisor import EXIT_RULE, RankExit, exit_signal, first_failure
from rules.matcher import Matcher
from rules.pack import Mark, load_packs
from rules.signal import SignalKind, Trust


def exited(rank: int, code: int | None = None, signal: int | None = None, time: float = 10.0, **more: object) -> RankExit:
    return RankExit(rank, 0, code, signal, time, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "signal", "text", "exit_code"),
    [
        (None, 9, "rank 2 ended with signal 9 on n1", "-9"),
        (137, None, "rank 2 ended with exit code 137 on n1", "137"),
        (1, None, "rank 2 ended with exit code 1 on n1", "1"),
    ],
)
def test_an_exit_is_a_line_that_the_shipped_rule_reads(code: int | None, signal: int | None, text: str, exit_code: str) -> None:
    found = exit_signal(exited(2, code, signal), Trust.NODE, "n1")
    assert found is not None and found.kind is SignalKind.EXIT
    assert (found.line.text, found.captures["exit_code"]) == (text, exit_code)
    assert (found.line.rank, found.line.node, found.line.trust) == (2, "n1", Trust.NODE)
    rules = {rule.code: rule for rule in load_packs()}
    assert rules[EXIT_RULE].marks is Mark.EXIT
    assert {hit.rule for hit in Matcher([rules[EXIT_RULE]]).scan(text.encode() + b"\n")} == {0}


def test_an_exit_that_nobody_could_read_says_nothing() -> None:
    assert exit_signal(exited(2), Trust.NODE) is None


def test_ranks_that_ended_well_or_by_our_hand_are_no_failure() -> None:
    assert exit_signal(exited(0, 0), Trust.NODE) is None
    assert exit_signal(exited(0, None, 9, by_us=True), Trust.NODE) is None
    assert first_failure([exited(0, 0), exited(1, None, 9, by_us=True)]) is None


def test_an_exception_that_was_long_before_the_exits_comes_first() -> None:
    early = exited(0, 1, time=20.0, error="ValueError: x", error_time=11.0)
    late = exited(1, None, 9, time=15.0)
    assert first_failure([late, early]) is early
