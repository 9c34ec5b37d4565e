"""What a node reports in the place of a leader that is gone, and with what it follows another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from detectors.supervisor import RankExit
from node.care_states import Care, Command, Noticed, Phase
from node.crew import Gone
from node.formation import Formation, Member
from node.job_state import JobState
from node.leaderless import LeaderlessReports, promoted, retired
from node.rank_group import Launch
from node.reforming import Marks

GONE = Gone("n1", 100.0, "nothing was heard for 2 s")
HANG = Noticed("hang", 3, "rank 3 is in sync of step 9 for 31 s")
MEMBERS = (Member("n1", 2, "10.0.0.1"), Member("n2", 2, "10.0.0.2"))
CARE = Care(Phase.RUNNING, 4, generation=1, formed=True, running=frozenset((2, 3)))
STATE = JobState("job", ("train",), "boot", 0.0, CARE, formation=Formation(1, MEMBERS))


class Sent:
    """Takes what would go to the service, and flushes what would go before it."""

    last_batch = 7

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        self.shipping = self

    def report_failure(self, document: dict[str, Any], after_batch: int) -> None:
        assert after_batch == self.last_batch
        self.documents.append(document)

    def flush(self, *_: object) -> None:
        return None


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def reports(sent: Sent) -> LeaderlessReports:
    launch = Launch("job", ("train",), 2, 3, "n2", None)
    return LeaderlessReports(launch, sent, lambda: {"step": 9, "checkpointed": 6}, lambda _: None)  # type: ignore[arg-type]


def test_a_hang_is_told_once_in_a_generation_with_the_node_that_is_gone(reports: LeaderlessReports, sent: Any) -> None:
    reports.notice(STATE, HANG, GONE, sent)
    reports.notice(STATE, HANG, GONE, sent)
    (document,) = sent.documents
    assert (document["failed"][0]["rank"], document["failed"][0]["node"]) == (3, "n2")
    assert [item["node"] for item in document["unreachable"]] == ["n1"] and document["last_checkpoint"] == {"step": 6}
    assert document["idempotency_key"] == "job:1:hang:told by n2", "the leader, once it is back, may tell the same"
    reports.notice(replace(STATE, care=replace(CARE, generation=2)), HANG, GONE, sent)
    assert len(sent.documents) == 2


def test_a_failed_rank_is_told_when_those_that_fail_with_it_had_time_to(reports: LeaderlessReports, sent: Any) -> None:
    state = replace(STATE, care=replace(CARE, running=frozenset((3,)), exits=(RankExit(2, 1, None, 9, 50.0),)))
    for now in (10.0, 10.2, 10.4, 10.6):
        reports.failure(state, Marks(), GONE, sent, now)
    (document,) = sent.documents
    assert [item["rank"] for item in document["failed"]] == [2]


def test_who_leads_by_command_waits_for_no_rank_of_its_own_that_it_has_ended() -> None:
    command = Command(5, "restart_ranks", 2, {"nodes": ["n2", "n1"]})
    leads = promoted(replace(STATE, care=replace(CARE, running=frozenset())), frozenset(), command)
    assert leads.leads and leads.care.running == {0, 1} and {item.rank for item in leads.care.exits} == {2, 3}


def test_who_follows_after_it_led_brings_nothing_of_the_old_generation() -> None:
    follows = retired(replace(STATE, leads=True, care=replace(CARE, phase=Phase.ENDED, leaves=True, done={4: "done"})))
    assert not follows.leads and follows.care.phase is Phase.STARTING and not follows.care.leaves
    assert not follows.care.running and not follows.care.formed and follows.care.done == {4: "done"}
    assert retired(replace(STATE, care=replace(CARE, next_generation=6))).care.generation == 6, "that overtook it"
