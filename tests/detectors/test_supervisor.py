"""What exit statuses say."""

from __future__ import annotations

import pytest

from detectors.supervisor import RankExit, exit_signal, exit_signals, first_failure
from rules.signal import Role, SignalKind, Trust
from rules.taxonomy import load_taxonomy


def exited(rank: int, code: int | None = None, signal: int | None = None, time: float = 10.0, **more: object) -> RankExit:
    return RankExit(rank, 0, code, signal, time, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "signal", "reason"),
    [
        (None, 9, "process_killed_sigkill"),
        (137, None, "process_killed_sigkill"),
        (None, 11, "process_segfault"),
        (None, 7, "process_bus_error"),
        (None, 15, "terminated_by_sigterm"),
        (None, 2, "user_interrupt"),
        (None, 1, "terminal_hangup"),
        (1, None, "process_exit_unattributed"),
        (None, None, "process_exit_unattributed"),
        (None, 40, "process_exit_unattributed"),
    ],
)
def test_a_death_names_its_reason_and_the_taxonomy_knows_it(code: int | None, signal: int | None, reason: str) -> None:
    found = exit_signal(exited(2, code, signal), Trust.NODE, "n1")
    assert found is not None and found.reason == reason and found.kind is SignalKind.EXIT
    assert found.reason in load_taxonomy()
    assert (found.line.rank, found.line.node, found.line.trust) == (2, "n1", Trust.NODE)


def test_an_exit_code_alone_is_context_not_a_cause() -> None:
    found = exit_signal(exited(0, 1), Trust.JOB)
    assert found is not None and found.role is Role.CONTEXT


def test_ranks_that_ended_well_or_by_our_hand_are_no_failure() -> None:
    assert exit_signal(exited(0, 0), Trust.NODE) is None
    assert exit_signal(exited(0, None, 9, by_us=True), Trust.NODE) is None
    assert first_failure([exited(0, 0), exited(1, None, 9, by_us=True)]) is None


def test_ranks_that_die_after_the_first_are_its_cascade() -> None:
    signals = exit_signals([exited(0, None, 6, time=10.6), exited(1, None, 9, time=10.1)], Trust.NODE)
    assert [(item.line.rank, item.role) for item in signals] == [(1, Role.ROOT), (0, Role.CASCADE)]


def test_an_exception_that_was_long_before_the_exits_comes_first() -> None:
    early = exited(0, 1, time=20.0, error="ValueError: x", error_time=11.0)
    late = exited(1, None, 9, time=15.0)
    assert first_failure([late, early]) is early
