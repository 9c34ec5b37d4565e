"""What people confirm is learnt: judged, counted in shadow, used by every replica, and taken back with one act."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from rules.pack import PACK_FOLDER
from rules.signal import Trust
from service.app import create_app
from service.ingest.matching import Learnt, MatcherPool
from service.learning import Learning
from service.learnt_rules import LearntRules
from service.settings import Settings
from tests.service.failed_jobs import fail, fail_with, say, send, service_of, shown

FIRST = ("epoch 1 begins", "node7: frobnicator 3 of slot A lost its phase lock after 1234 ms", "leaving")
AGAIN = ("epoch 9 begins", "gpu-12: frobnicator 71 of slot A lost its phase lock after 9 ms", "leaving now")
OTHER = ("epoch 1 begins", "the tokenizer failed to find its padding token", "leaving")
CITED = "frobnicator 3 of slot A lost its phase lock"
WRITTEN: dict[str, Any] = {
    "pattern": "lost its phase lock",
    "reason": "nan_loss",
    "title": "a phase lock was lost",
    "cited": [CITED],
}


@pytest.fixture
def learning(client: TestClient) -> Learning:
    service = service_of(client)
    return Learning(service.store, service.pool, service.clock, PACK_FOLDER)


@pytest.fixture(autouse=True)
def nothing_learnt(pool: MatcherPool) -> Any:
    """The matcher processes outlive one test."""
    yield
    pool.learn(Learnt())


def candidates(client: TestClient) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = client.get("/api/v1/candidates").json()["items"]
    return listed


def write(client: TestClient, **fields: Any) -> str:
    answer = client.post("/api/v1/candidates", json=WRITTEN | fields)
    assert answer.status_code == 201, answer.json()
    return str(answer.json()["id"])


def state_of(client: TestClient, number: str) -> str:
    return str(client.get(f"/api/v1/candidates/{number}").json()["state"])


def act(client: TestClient, admin: dict[str, str], number: str, verb: str, expected: int = 200) -> None:
    assert client.post(f"/api/v1/candidates/{number}/{verb}", headers=admin).status_code == expected


def in_use(client: TestClient, admin: dict[str, str], learning: Learning, **fields: Any) -> str:
    """A written rule that the gate let through and an operator put into use."""
    number = write(client, **fields)
    learning.work()
    act(client, admin, number, "approve")
    LearntRules(learning.store, learning.pool).refresh()
    return number


def test_a_confirmed_failure_is_diagnosed_by_its_rule_the_second_time(
    client: TestClient, admin: dict[str, str], learning: Learning
) -> None:
    first = fail(client, "one", FIRST)
    assert shown(client, first)["diagnosis"]["reason"] == "process_exit_unattributed"
    say(client, first, right=False, reason="ib_link_flap")
    learning.work()
    (learnt,) = candidates(client)
    assert (learnt["state"], learnt["reason"], learnt["origin"]) == ("shadow", "ib_link_flap", "confirmation")
    assert learnt["judged"]["passes"] and learnt["judged"]["agreeing"] == 1 and learnt["provenance"]["incident"] == str(first)
    act(client, admin, learnt["id"], "approve")
    LearntRules(learning.store, learning.pool).refresh()
    again, other = fail(client, "two", AGAIN, "gpu-12", 5), fail(client, "three", OTHER)
    named = shown(client, again)
    assert (named["reason"], named["source"], named["rule"]) == ("ib_link_flap", "rule", learnt["code"])
    assert named["diagnosis"]["reason"] == "ib_link_flap"
    roots = [(item["text"], item["trust"]) for item in named["evidence"] if item["role"] == "root"]
    assert roots == [(AGAIN[1], Trust.JOB)]
    assert shown(client, other)["reason"] == "process_exit_unattributed"


def test_a_hardware_fault_that_was_learnt_isolates_nothing(client: TestClient, admin: dict[str, str], learning: Learning) -> None:
    in_use(client, admin, learning, reason="gpu_fallen_off_bus")
    named = shown(client, fail(client, "two", AGAIN))
    assert (named["reason"], named["severity"], named["remedy"]) == ("gpu_fallen_off_bus", "SEV2", "localise")


def test_a_learnt_rule_never_speaks_where_a_shipped_one_names_the_cause(
    client: TestClient, admin: dict[str, str], learning: Learning
) -> None:
    in_use(client, admin, learning)
    lines = (
        *FIRST,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB",
    )
    assert shown(client, fail(client, "two", lines))["reason"] == "gpu_oom"


def test_in_shadow_a_rule_is_counted_and_says_nothing(client: TestClient, learning: Learning) -> None:
    number = write(client)
    learning.work()
    assert state_of(client, number) == "shadow"
    again = fail(client, "two", AGAIN)
    learning.work()
    assert shown(client, again)["reason"] == "process_exit_unattributed"
    assert client.get(f"/api/v1/candidates/{number}").json()["hits"] == {"total": 1, "agreeing": 0, "contradicting": 0}
    assert AGAIN[1] in client.get(f"/learning/{number}").text


def test_enough_agreeing_hits_put_a_rule_into_use(client: TestClient, learning: Learning) -> None:
    number = write(client)
    learning.work()
    for count, job in enumerate(("one", "two", "three")):
        assert state_of(client, number) == "shadow", count
        incident = fail(client, job, AGAIN)
        learning.work()
        say(client, incident, right=False, reason="nan_loss")
        learning.work()
    assert state_of(client, number) == "active"


def test_one_contradicting_hit_keeps_a_rule_in_shadow(client: TestClient, learning: Learning) -> None:
    number = write(client)
    learning.work()
    for job, reason in (("a", "nan_loss"), ("b", "nan_loss"), ("c", "dns_resolution_failure"), ("d", "nan_loss")):
        incident = fail(client, job, AGAIN)
        learning.work()
        say(client, incident, right=False, reason=reason)
        learning.work()
    assert state_of(client, number) == "shadow"


def test_a_rule_that_an_operator_calls_wrong_steps_back_to_shadow_for_good(
    client: TestClient, admin: dict[str, str], learning: Learning
) -> None:
    number = in_use(client, admin, learning)
    incident = fail(client, "two", AGAIN)
    learning.work()
    assert shown(client, incident)["rule"] == client.get(f"/api/v1/candidates/{number}").json()["code"]
    say(client, incident, right=False)
    learning.work()
    assert state_of(client, number) == "shadow"
    assert LearntRules(learning.store, learning.pool).refresh() == ()
    assert shown(client, fail(client, "three", AGAIN))["reason"] == "process_exit_unattributed"


def test_the_gate_refuses_what_contradicts_a_settled_incident_line_by_line(client: TestClient, learning: Learning) -> None:
    settled = fail_with(client, "old", FIRST)
    say(client, settled, right=False, reason="dns_resolution_failure")
    number = write(client)
    learning.work()
    found = client.get(f"/api/v1/candidates/{number}").json()
    assert found["state"] == "refused" and f"contradicts incident {settled}" in found["judged"]["objections"][0]
    assert [(item["incident"], item["line"]) for item in found["judged"]["differences"]] == [(str(settled), FIRST[1])]
    page = client.get(f"/learning/{number}").text
    assert "It is refused" in page and FIRST[1] in page and "dns_resolution_failure" in page


def test_the_gate_refuses_what_stands_in_the_log_of_a_healthy_job(client: TestClient, learning: Learning) -> None:
    document = {"job": "well", "owner": "a", "contact": "a@x.org", "ranks": 1, "nodes": ["n"], "command": ["x"]}
    assert client.post("/api/v1/jobs", json=document).status_code == 201
    send(client, "well", FIRST)
    beat = {"attempt": 0, "generation": 0, "node": "n", "ranks": [], "ended": True, "exit_status": 0}
    assert client.post("/api/v1/jobs/well/heartbeat", json=beat).status_code < 300
    number = write(client)
    learning.work()
    assert "stored healthy logs" in client.get(f"/api/v1/candidates/{number}").json()["judged"]["objections"][0]


def test_rolling_back_brings_the_version_before_into_use(client: TestClient, admin: dict[str, str], learning: Learning) -> None:
    first = in_use(client, admin, learning)
    second = in_use(client, admin, learning, pattern="lost its phase", replaces=int(first))
    assert (state_of(client, first), state_of(client, second)) == ("superseded", "active")
    assert [rule.any for rule in LearntRules(learning.store, learning.pool).refresh()] == [("lost its phase",)]
    act(client, admin, second, "rollback")
    assert (state_of(client, first), state_of(client, second)) == ("active", "rolled_back")
    assert [rule.any for rule in LearntRules(learning.store, learning.pool).refresh()] == [("lost its phase lock",)]
    act(client, admin, second, "rollback", 409)
    history = client.get(f"/api/v1/candidates/{first}").json()["history"]
    assert [entry["state"] for entry in history] == ["proposed", "shadow", "active", "superseded", "active"]


def test_what_was_rolled_back_does_not_come_back_by_itself(client: TestClient, admin: dict[str, str], learning: Learning) -> None:
    for job in ("one", "two"):
        say(client, fail(client, job, FIRST), right=False, reason="nan_loss")
        learning.work()
        if job == "one":
            act(client, admin, candidates(client)[0]["id"], "rollback")
    assert [item["state"] for item in candidates(client)] == ["rolled_back"]


def test_another_replica_uses_what_this_one_put_into_use(
    client: TestClient, admin: dict[str, str], learning: Learning, settings: Settings
) -> None:
    in_use(client, admin, learning)
    pool = MatcherPool(1, 128 * 1024 * 1024)
    try:
        with TestClient(create_app(settings, shared_pool=pool), base_url="http://localhost", client=("127.0.0.1", 7)) as other:
            LearntRules(learning.store, pool).refresh()
            assert shown(other, fail(other, "two", AGAIN))["reason"] == "nan_loss"
    finally:
        pool.close()


@pytest.mark.parametrize(
    "fields", [{"reason": "gremlins"}, {"reason": None}, {"reason": "unknown"}, {"pattern": ""}, {"role": "teardown"}]
)
def test_what_is_no_rule_is_refused_at_the_door(client: TestClient, fields: dict[str, Any]) -> None:
    assert client.post("/api/v1/candidates", json=WRITTEN | fields).status_code == 422


def test_without_a_token_nobody_puts_a_rule_into_use(client: TestClient, learning: Learning) -> None:
    number = write(client)
    learning.work()
    assert client.post(f"/api/v1/candidates/{number}/approve").status_code == 403
