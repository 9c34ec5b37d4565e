"""A job may print what it likes, and name whom it likes: it reaches nobody but itself."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from recovery.decision import CLUSTER_ACTIONS, Action, Mode
from recovery.job_facts import JobFacts
from recovery.policy import Situation, decide
from rules.artefact import load_matcher
from rules.diagnosis import Diagnosis
from rules.matcher import Matcher
from rules.pack import RuleRole, load_packs
from rules.signal import Trust
from service.diagnoses import StreamContent, rank_contents
from service.ingest.matching import Tools

AUTO = dict.fromkeys(Action, Mode.AUTO)
# What the word of the job's own processes may cause (law 2).
OWN_ACTIONS = {Action.NONE, Action.RETRY, Action.RESTART, Action.ROLLBACK, Action.STOP}
JOB = JobFacts("gpt", nodes=("n1", "n2"), ranks=16, min_ranks=1, spares=("n7", "n8"), last_step=40)
# How a line names a node: syslog's host, a launcher's prefix, a key, a fully qualified name.
NAMING = ("{line}", "Nov 29 18:00:00 n2 kernel: {line}", "n9: {line}", "host=n9 {line}", "[n9.cluster.example.org:0] {line}")


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return load_matcher()


def root_examples() -> Iterator[str]:
    for rule in load_packs():
        if rule.role is RuleRole.ROOT:
            yield from rule.examples.match


def diagnosed(text: str, matcher: Matcher) -> Diagnosis:
    """What the service makes of these lines when they came from the job's own rank on n2, whatever they look like."""
    numbers = tuple(range(1, text.count("\n") + 1))
    content = StreamContent("rank0.log", text.encode(), numbers, 0, "n2", Trust.JOB)
    tools = cast(Tools, SimpleNamespace(matcher=matcher, learnt=Matcher(())))
    return rank_contents(tools, [content], [], 0.0)


def stays_within_the_job(verdict: Diagnosis, matcher: Matcher) -> None:
    reasons = {rule.code: rule.reason for rule in matcher.rules if rule.reason is not None}
    for spent in range(4):
        for escalation in range(3):
            decision = decide(Situation(verdict, JOB, spent=spent, escalation=escalation, modes=AUTO, rule_reasons=reasons))
            assert decision.action in OWN_ACTIONS, (verdict.reason, decision)
            assert decision.exclude == decision.use == ()
            assert not any(action.value in decision.would.split() for action in CLUSTER_ACTIONS), decision.would


def test_no_root_example_of_any_pack_reaches_beyond_the_job_whatever_node_it_names(matcher):
    examples = list(root_examples())
    assert len(examples) > 100
    for number, line in enumerate(examples):
        naming = NAMING[number % len(NAMING)]
        stays_within_the_job(diagnosed(naming.format(line=line) + "\n", matcher), matcher)


@pytest.mark.parametrize("naming", NAMING)
def test_all_of_them_together_reach_no_further(matcher, naming):
    text = "".join(naming.format(line=line) + "\n" for line in root_examples())
    stays_within_the_job(diagnosed(text, matcher), matcher)
