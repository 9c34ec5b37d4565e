"""Exit codes and launcher summaries."""

from __future__ import annotations

import pytest

from rules.pack import Mark, Rule
from rules.ranking.exits import signal_number
from rules.signal import Signal
from tests.rules.casebook import diagnose, root_lines, rule, sighting

EXIT = rule("T-EXIT", role="context", marks=Mark.EXIT)
LOADING = rule("T-LOADING", role="context", marks=Mark.LOADING)
STEP = rule("T-STEP", role="routine", marks=Mark.PROGRESS)


def entry(number: int, code: str, rank: str = "0", at: str = "10:00:00") -> tuple[Rule, Signal]:
    """An entry of torchrun's summary as reading puts it together."""
    return sighting(EXIT, number, captures={"exit_code": code, "failed_at": at, "rank": rank, "node": "n1"})


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("-7", "process_bus_error"),
        ("-9", "process_killed_sigkill"),
        ("137", "process_killed_sigkill"),
        ("-11", "process_segfault"),
        ("-6", "process_exit_unattributed"),
        ("1", "process_exit_unattributed"),
        ("-15", "terminated_by_sigterm"),
        ("-2", "user_interrupt"),
        ("-1", "terminal_hangup"),
    ],
)
def test_an_exit_code_alone_supports_one_reason(code: str, reason: str) -> None:
    diagnosis = diagnose(entry(1, code))
    assert (diagnosis.reason, root_lines(diagnosis)) == (reason, [1])
    assert diagnosis.fault_domain.node == "n1"


def test_exit_status_zero_is_no_failure() -> None:
    assert diagnose(entry(1, "0")).reason == "none"


def test_aborted_ranks_are_victims_of_the_one_with_a_signal_of_its_own() -> None:
    diagnosis = diagnose(entry(1, "-6", "0"), entry(3, "-11", "3"), entry(5, "-6", "1"))
    assert (diagnosis.reason, diagnosis.fault_domain.rank) == ("process_segfault", "3")


def test_the_first_to_fail_counts_where_times_differ() -> None:
    diagnosis = diagnose(entry(1, "-9", "0", "10:00:07"), entry(3, "-11", "3", "10:00:01"))
    assert diagnosis.reason == "process_segfault"


def test_equal_times_carry_no_information() -> None:
    diagnosis = diagnose(entry(1, "-6", "0"), entry(3, "-6", "1"))
    assert (diagnosis.reason, root_lines(diagnosis)) == ("process_exit_unattributed", [1, 3])
    assert diagnosis.fault_domain.rank == "0, 1"


def test_any_line_that_names_a_cause_outranks_every_exit_code() -> None:
    cause = rule("T-KEY", "python_key_error", weight=30)
    assert diagnose(sighting(cause, 1), entry(2, "-11")).reason == "python_key_error"


def test_sigkill_while_weights_are_loaded_is_the_owners_to_fix() -> None:
    diagnosis = diagnose(sighting(LOADING, 1), entry(4, "-9"))
    assert (diagnosis.reason, root_lines(diagnosis)) == ("host_oom_model_loading", [1, 4])


def test_sigkill_after_completed_steps_is_not_blamed_on_loading() -> None:
    assert diagnose(sighting(LOADING, 1), sighting(STEP, 2), entry(4, "-9")).reason == "process_killed_sigkill"


@pytest.mark.parametrize(("text", "number"), [("9", 9), ("SIGKILL", 9), ("term", 15), ("nonsense", None), (None, None)])
def test_signals_are_read_as_number_or_name(text: str | None, number: int | None) -> None:
    assert signal_number(text) == number
