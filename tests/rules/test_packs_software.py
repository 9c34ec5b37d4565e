"""The packs about software: every example of a cause, read alone, leads to that cause."""

from __future__ import annotations

from functools import cache

import pytest

from detectors.reading.scan import scan_text
from rules.artefact import load_matcher
from rules.diagnosis import Diagnosis
from rules.matcher import Matcher
from rules.pack import Rule, RuleRole, load_packs
from rules.ranking import rank
from rules.taxonomy import UNKNOWN

PACKS = frozenset(
    {
        "checkpoint",
        "cuda_runtime",
        "dataloader",
        "dataset",
        "deepspeed",
        "environment",
        "evaluation_api",
        "files",
        "fsdp",
        "gloo",
        "hubs",
        "huggingface",
        "jax",
        "launch",
        "lightning",
        "megatron",
        "nccl",
        "nemo",
        "numerics",
        "oom",
        "process",
        "python",
        "pytorch",
        "ray",
        "rendezvous",
        "tensorflow",
        "torchrun",
        "trackers",
        "triton",
    }
)


@cache
def matcher() -> Matcher:
    return load_matcher()


def diagnose(text: str) -> Diagnosis:
    return rank(scan_text(text.encode() + b"\n", matcher(), lambda: 1.8e9), matcher().rules)


def software_rules(*roles: RuleRole) -> list[Rule]:
    return [rule for rule in load_packs() if rule.pack in PACKS and rule.role in roles]


@pytest.mark.parametrize(
    "rule", [rule for rule in software_rules(RuleRole.ROOT) if not rule.transient], ids=lambda rule: rule.code
)
def test_each_example_of_a_cause_leads_to_that_cause(rule: Rule) -> None:
    found = {text: diagnose(text).reason for text in rule.examples.match}
    assert found == dict.fromkeys(rule.examples.match, rule.reason)


@pytest.mark.parametrize("rule", software_rules(RuleRole.CASCADE), ids=lambda rule: rule.code)
def test_a_symptom_alone_is_reported_as_a_failure_without_a_cause(rule: Rule) -> None:
    for text in rule.examples.match:
        diagnosis = diagnose(text)
        assert diagnosis.is_failure, text
        assert rule.reason in (UNKNOWN, diagnosis.reason), text


@pytest.mark.parametrize("rule", software_rules(RuleRole.ROOT, RuleRole.CASCADE), ids=lambda rule: rule.code)
def test_rules_state_their_source_and_several_shapes(rule: Rule) -> None:
    assert rule.title
    assert rule.reference.startswith("https://") or rule.reason == UNKNOWN
    assert rule.examples.match
    assert rule.examples.miss
