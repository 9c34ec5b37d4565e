"""The ladder adds a name for a cause and never more power to act."""

from __future__ import annotations

import itertools

import pytest

from agents.budget import Usage
from agents.failure_agent import Opinion
from agents.ladder import Ladder, Recall, SecondOpinion
from agents.memory import Vote
from rules.diagnosis import Diagnosis, Evidence, Source
from rules.signal import Role, Trust
from rules.taxonomy import NONE, UNKNOWN, Remedy, Severity, load_taxonomy

TAXONOMY = load_taxonomy()
UNKNOWN_FAILURE = Diagnosis.of(
    TAXONOMY[UNKNOWN],
    "exit code 1",
    source=Source.UNKNOWN,
    evidence=(Evidence(Role.CONTEXT, "it broke", line=4),),
    collect=("dmesg",),
)
SEV1 = next(name for name, reason in TAXONOMY.reasons.items() if reason.severity is Severity.SEV1)


def ladder(recall: Recall | None = None, opinion: SecondOpinion | None = None) -> Ladder:
    return Ladder(TAXONOMY, recall, opinion, itertools.count().__next__)


def never(_diagnosis: Diagnosis) -> Vote:
    raise AssertionError("it was asked")


@pytest.mark.parametrize("reason", ["nan_loss", "dns_resolution_failure", NONE])
def test_an_established_verdict_is_never_put_to_another_rung(reason: str) -> None:
    diagnosis = Diagnosis.of(TAXONOMY[reason], "known")
    result = ladder(never).climb(diagnosis)
    assert result.diagnosis is diagnosis and len(result.rungs) == 1


def test_memory_names_the_cause_of_what_the_rules_do_not_know() -> None:
    result = ladder(lambda _d: Vote("nan_loss", 0.9, "like incident 4")).climb(UNKNOWN_FAILURE)
    assert (result.diagnosis.reason, result.diagnosis.source) == ("nan_loss", Source.MEMORY)
    assert [rung.source for rung in result.rungs] == [Source.RULE, Source.MEMORY]


@pytest.mark.parametrize("name", sorted(TAXONOMY.reasons))
def test_memory_alone_never_isolates(name: str) -> None:
    result = ladder(lambda _d: Vote(name, 0.99, "like incident 4")).climb(UNKNOWN_FAILURE)
    assert result.diagnosis.severity is not Severity.SEV1
    assert result.diagnosis.remedy not in (Remedy.ISOLATE_NODE, Remedy.RESET_GPU)


def test_a_past_hardware_fault_means_localise_then_decide() -> None:
    result = ladder(lambda _d: Vote(SEV1, 0.99, "like incident 4")).climb(UNKNOWN_FAILURE)
    assert (result.diagnosis.severity, result.diagnosis.remedy) == (Severity.SEV2, Remedy.LOCALISE)


@pytest.mark.parametrize("name", sorted(TAXONOMY.reasons))
def test_a_model_changes_no_handling(name: str) -> None:
    result = ladder(None, lambda _d: Opinion(name, 0.7, "it says so")).climb(UNKNOWN_FAILURE)
    for field in ("severity", "remedy", "retryable", "fault_domain"):
        assert getattr(result.diagnosis, field) == getattr(UNKNOWN_FAILURE, field)


def test_lines_that_a_model_points_at_become_roots_of_trust_job() -> None:
    opinion = Opinion("nan_loss", 0.7, "", lines=(4, 9), quotes=("it broke", "elsewhere"))
    roots = ladder(None, lambda _d: opinion).climb(UNKNOWN_FAILURE).diagnosis.evidence
    assert [(item.role, item.text, item.trust) for item in roots] == [
        (Role.ROOT, "it broke", Trust.JOB),
        (Role.ROOT, "elsewhere", Trust.JOB),
    ]


def test_rungs_that_are_off_say_so_and_the_unknown_stays_what_it_was() -> None:
    result = ladder().climb(UNKNOWN_FAILURE)
    assert result.diagnosis is UNKNOWN_FAILURE
    assert [(rung.source.value, rung.reason) for rung in result.rungs] == [
        ("rule", None),
        ("memory", None),
        ("llm", None),
        ("unknown", UNKNOWN),
    ]
    assert "not installed" in result.rungs[1].why and "no model" in result.rungs[2].why


def test_the_model_is_asked_only_where_memory_abstains() -> None:
    asked = []

    def opinion(diagnosis: Diagnosis) -> Opinion:
        asked.append(diagnosis)
        return Opinion(None, 0.0, "it does not know", usage=Usage(10, 5), seconds=2.0)

    assert ladder(lambda _d: Vote("nan_loss", 0.9, ""), opinion).climb(UNKNOWN_FAILURE) and not asked
    result = ladder(lambda _d: Vote(None, 0.0, "nothing alike"), opinion).climb(UNKNOWN_FAILURE)
    assert len(asked) == 1 and (result.rungs[2].tokens, result.rungs[2].seconds) == (15, 2.0)
