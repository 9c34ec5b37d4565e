"""From what the members of a world say to the result of the probe."""

from __future__ import annotations

from recovery.localization.answers import Answer, combine
from recovery.localization.probes import Outcome, Probe

PAIR = Probe(1, 1, ("a", "b"))
FINE = Answer(Outcome.PASSED, 0.02)


def test_a_world_passes_in_the_time_of_its_slowest_member() -> None:
    result = combine(PAIR, {"a": FINE, "b": Answer(Outcome.PASSED, 0.5)})
    assert (result.outcome, result.seconds, result.error) == (Outcome.PASSED, 0.5, "")


def test_the_worst_that_a_member_saw_is_the_result_and_says_who_saw_it() -> None:
    result = combine(PAIR, {"a": FINE, "b": Answer(Outcome.WRONG_DATA, 0.0, "3 wrong words")})
    assert (result.outcome, result.error) == (Outcome.WRONG_DATA, "b: 3 wrong words")


def test_a_killed_probe_proves_nothing_whatever_its_partner_saw() -> None:
    killed = Answer(Outcome.VOID, 0.0, "the probe was killed by signal 9")
    result = combine(PAIR, {"a": killed, "b": Answer(Outcome.ERROR, 0.1, "Connection reset by peer")})
    assert result.outcome is Outcome.VOID
    assert not result.failed


def test_an_agent_that_says_nothing_proves_nothing_either() -> None:
    result = combine(PAIR, {"a": Answer(Outcome.TIMED_OUT, 2.0)})
    assert result.outcome is Outcome.SILENT
    assert "b: no answer" in result.error
