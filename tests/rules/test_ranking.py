"""Root before cascade before teardown, and what overrides that order."""

from __future__ import annotations

from rules.signal import Role
from rules.taxonomy import Severity
from tests.rules.casebook import diagnose, root_lines, rule, sighting

ASSERT = rule("T-ASSERT", "device_side_assert", weight=85)
TIMEOUT = rule("T-TIMEOUT", "nccl_timeout_unattributed", "cascade")
PEER = rule("T-PEER", "remote_peer_lost", "cascade", weight=45)
TERM = rule("T-TERM", None, "teardown")
LOST = rule("T-LOST", "gpu_fallen_off_bus", weight=90)
KEY = rule("T-KEY", "python_key_error")


def test_an_input_without_signals_is_no_failure() -> None:
    diagnosis = diagnose()
    assert (diagnosis.reason, diagnosis.severity, diagnosis.evidence) == ("none", Severity.NONE, ())


def test_teardown_lines_alone_are_no_failure() -> None:
    assert diagnose(sighting(TERM, 3)).reason == "none"


def test_a_root_outranks_cascades_that_came_before_it() -> None:
    diagnosis = diagnose(sighting(TIMEOUT, 1), sighting(PEER, 2), sighting(KEY, 9), sighting(TERM, 10))
    assert (diagnosis.reason, root_lines(diagnosis)) == ("python_key_error", [9])
    roles = {item.line: item.role for item in diagnosis.evidence}
    assert roles == {1: Role.CASCADE, 2: Role.CASCADE, 9: Role.ROOT, 10: Role.TEARDOWN}


def test_without_a_root_the_most_telling_cascade_names_the_symptom() -> None:
    diagnosis = diagnose(sighting(TIMEOUT, 1), sighting(PEER, 2))
    assert (diagnosis.reason, diagnosis.confidence < 0.6) == ("nccl_timeout_unattributed", True)
    assert diagnosis.collect


def test_the_more_telling_of_two_roots_wins_even_when_it_comes_later() -> None:
    diagnosis = diagnose(sighting(KEY, 1), sighting(LOST, 5))
    assert diagnosis.reason == "gpu_fallen_off_bus"
    assert [item.reason for item in diagnosis.alternatives] == ["python_key_error"]
    assert diagnosis.alternatives[0].ruled_out_by


def test_of_equally_telling_roots_the_first_wins() -> None:
    assert diagnose(sighting(ASSERT, 1), sighting(LOST, 5)).reason == "device_side_assert"


def test_a_rule_that_names_its_explanation_becomes_a_consequence() -> None:
    late = rule("T-OOM", "cuda_library_init_failed", weight=80, explained_by=("device_side_assert",))
    diagnosis = diagnose(sighting(late, 1), sighting(ASSERT, 5))
    assert (diagnosis.reason, root_lines(diagnosis)) == ("device_side_assert", [5])
    assert "T-ASSERT" in diagnosis.alternatives[0].ruled_out_by


def test_rules_that_explain_each_other_are_settled_by_weight() -> None:
    one = rule("T-ONE", "gpu_oom", weight=50, overrides=("T-TWO",))
    two = rule("T-TWO", "host_oom_killed", weight=70, overrides=("T-ONE",))
    assert diagnose(sighting(one, 1), sighting(two, 2)).reason == "host_oom_killed"


def test_a_failure_without_a_cause_is_unknown_and_never_isolates() -> None:
    trouble = rule("T-TROUBLE", "unknown", "cascade")
    diagnosis = diagnose(sighting(trouble, 4))
    assert (diagnosis.reason, diagnosis.severity, diagnosis.source.value) == ("unknown", Severity.SEV2, "unknown")
    assert diagnosis.confidence < 0.5
    assert diagnosis.collect


def test_a_severity_override_applies_where_its_condition_is_in_the_line() -> None:
    from rules.pack import SeverityOverride

    corrupt = rule("T-ZIP", "checkpoint_corrupted", severity=(SeverityOverride(Severity.NONE, "hub/"),))
    assert diagnose(sighting(corrupt, 1, text="bad zip /ckpt/x.pt")).severity is Severity.SEV2
    assert diagnose(sighting(corrupt, 1, text="bad zip /root/.cache/hub/x.bin")).severity is Severity.NONE


def test_across_files_the_earlier_time_comes_first() -> None:
    first = sighting(LOST, 7, path="rank1.log", time=100.0)
    second = sighting(ASSERT, 3, path="rank0.log", time=105.0)
    assert diagnose(second, first).reason == "gpu_fallen_off_bus"
