"""The gate refuses bad candidates and says why."""

from __future__ import annotations

import pytest

from rules.gate import Candidate, SettledIncident, inspect
from rules.matcher import Matcher
from rules.pack import Examples, Rule, RuleRole

CITED = ("node7: frobnicator 3 lost its phase lock",)
NORMAL = ("step 1 loss 2.0", "step 2 loss 1.9", "saving checkpoint", "frobnicator 3 ready")
SIGNAL = Rule("S-1", "t", "p", RuleRole.ROOT, "nan_loss", ("loss is nan",), examples=Examples(("loss is nan at step 7",)))
SIGNALS = Matcher([SIGNAL])
BROAD_OR_COSTLY = (".*", ".", r"\w+", r"\d+", "a|b", "(a+)+$", r"(\w+\s?)*x", "", "frobnicator", "lost its phase.*")
UNCOMPILABLE = ("[", "(", "*lock", r"(lost)\1", "(?=lost)lost its", "(?<!a)lost its", r"lost its\nphase")
DECEITFUL = (
    "lost its phase lock|",
    "step|loss|lost its phase lock",
    "(lost its phase lock){0,3}",
    "(?s)lost its.phase",
    "a{1,100000}lost its",
)
BLIND = ("other words", "Lost Its Phase", "^lost its phase")
PAST = (SettledIncident("41", "dns_resolution_failure", ("start", "frobnicator 9 lost its phase lock")),)


def rule(pattern: str, role: RuleRole = RuleRole.ROOT) -> Rule:
    return Rule("C-1", "c", "p", role, None if role is RuleRole.ROUTINE else "nan_loss", (pattern,))


def test_a_good_candidate_passes() -> None:
    assert inspect(Candidate(rule("lost its phase lock"), CITED), SIGNALS, NORMAL, ()).passes


@pytest.mark.parametrize(
    "pattern",
    [*BROAD_OR_COSTLY, *UNCOMPILABLE, *DECEITFUL, *BLIND],
)
def test_a_bad_signal_rule_is_refused_with_the_reason(pattern: str) -> None:
    result = inspect(Candidate(rule(pattern), CITED), SIGNALS, NORMAL, ())
    assert not result.passes and result.objections[0]


def test_a_candidate_that_contradicts_a_settled_incident_is_refused_line_by_line() -> None:
    result = inspect(Candidate(rule("lost its phase lock"), CITED), SIGNALS, NORMAL, PAST)
    assert not result.passes and "contradicts incident 41" in result.objections[0]
    assert result.differences[0].line == "frobnicator 9 lost its phase lock"


def test_a_candidate_that_finds_lines_of_healthy_logs_is_refused() -> None:
    assert (
        "stored healthy logs"
        in inspect(Candidate(rule("phase lock"), CITED), SIGNALS, NORMAL, (), ["phase lock ok"]).objections[0]
    )


def test_a_candidate_that_cites_nothing_is_refused() -> None:
    assert inspect(Candidate(rule("phase lock"), ("",)), SIGNALS, NORMAL, ()).objections == ("it cites no line",)


@pytest.mark.parametrize("pattern", ["loss is", "at step [0-9]", "nan at step"])
def test_a_filter_that_hides_a_signal_is_refused(pattern: str) -> None:
    cited = ("loss is nan at step 9",)
    assert "hide a signal" in inspect(Candidate(rule(pattern, RuleRole.ROUTINE), cited), SIGNALS, (), ()).objections[0]


@pytest.mark.parametrize(
    ("pattern", "learnt", "evidence"),
    [
        ("phase lock", (rule("lost its phase lock"),), ()),
        ("phase lock", (), ("frobnicator 9 lost its phase lock",)),
        ("run [0-9]+ says", (), ()),
    ],
    ids=["a learnt rule's line", "a line that told the cause", "a line of a shipped rule"],
)
def test_a_filter_that_contradicts_a_settled_incident_is_refused_line_by_line(
    pattern: str, learnt: tuple[Rule, ...], evidence: tuple[str, ...]
) -> None:
    lines = ("phase lock ok", "frobnicator 9 lost its phase lock", "run 7 says loss is nan", "run 7 says hello")
    past = SettledIncident("41", "nan_loss", lines, evidence)
    candidate = Candidate(rule(pattern, RuleRole.ROUTINE), ("phase lock ok", "run 8 says hello")[pattern.startswith("run") :][:1])
    result = inspect(candidate, SIGNALS, (), (past,), learnt=learnt)
    assert not result.passes and "tells the cause of incident 41" in result.objections[-1]
    assert [item.line for item in result.differences] == [lines[2 if pattern.startswith("run") else 1]]


def test_a_filter_may_drop_what_a_settled_incident_does_not_rest_on() -> None:
    past = SettledIncident("41", "nan_loss", ("phase lock ok", "loss is nan"), ("loss is nan",))
    assert inspect(Candidate(rule("phase lock ok", RuleRole.ROUTINE), ("phase lock ok",)), SIGNALS, (), (past,)).passes


def test_a_filter_that_drops_most_lines_is_refused() -> None:
    lines = tuple(f"heartbeat {name}" for name in "abcdef")
    assert "too broad" in inspect(Candidate(rule("heartbeat", RuleRole.ROUTINE), lines[:1]), SIGNALS, lines, ()).objections[0]
