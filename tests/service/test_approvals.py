"""Operators' say: approving, rejecting, freezing, raising modes; all of it audited."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from rules.diagnosis import Diagnosis, Evidence
from rules.signal import Role, Trust
from rules.taxonomy import load_taxonomy
from service.state import Service
from service.store.access import AuditEntry
from service.store.jobs import Job
from service.store.recoveries import CommandRow, RecoveryRow
from tests.service.scripted_agent import ScriptedAgent


def service_of(client: TestClient) -> Service:
    return client.app.state.pitstop  # type: ignore[attr-defined,no-any-return]


def fallen_off_the_bus(_incident: int) -> Diagnosis:
    line = Evidence(Role.ROOT, "NVRM: Xid 79", "kernel", 7, "PS-XID-079", Trust.NODE, "n2")
    return Diagnosis.of(load_taxonomy()["gpu_fallen_off_bus"], "a GPU fell off the bus", rule="PS-XID-079", evidence=(line,))


@pytest.fixture
def agent(client: TestClient, admin: dict[str, str]) -> ScriptedAgent:
    """A job on two nodes that an authenticated launcher registered; one of its GPUs will fall off the bus."""
    service_of(client).recoveries.diagnose = fallen_off_the_bus
    client.headers.update(admin)
    agent = ScriptedAgent(client)
    agent.register(nodes=["n1", "n2"], min_ranks=1)
    ScriptedAgent(client, node="n2").lease()
    agent.generation = 0
    ranks = [{"rank": 0, "node": "n1"}, {"rank": 1, "node": "n2"}]
    agent.running = True
    agent.post("jobs/gpt/attempts", {"attempt": 0, "generation": 0, "ranks": ranks})
    return agent


def set_mode(client: TestClient, **modes: str) -> Any:
    answer = client.put("/api/v1/modes", json={"modes": modes, "why": "trial on this cluster"})
    assert answer.status_code == 200, answer.json()
    return answer.json()


def audits(client: TestClient, act: str) -> list[AuditEntry]:
    with service_of(client).store.reading() as session:
        return list(session.scalars(select(AuditEntry).where(AuditEntry.act == act)))


def commands(client: TestClient) -> list[tuple[str, str]]:
    with service_of(client).store.reading() as session:
        return [(row.node, row.kind) for row in session.scalars(select(CommandRow).order_by(CommandRow.id))]


def test_an_isolation_waits_for_approval_and_goes_ahead_when_it_comes(client: TestClient, agent: ScriptedAgent) -> None:
    set_mode(client, isolate="approve")
    waiting = agent.fail(wait=2)
    assert (waiting["directive"], waiting["mode"]) == ("wait", "approve")
    assert "isolate of n2" in waiting["would"]
    incident = waiting["incident"]
    assert client.get(f"/api/v1/incidents/{incident}").json()["state"] == "waiting_for_approval"
    assert commands(client) == []
    approved = client.post(f"/api/v1/incidents/{incident}/approve", json={"comment": "go"})
    assert approved.status_code == 200, approved.json()
    decided = agent.fail(wait=60)
    assert (decided["directive"], decided["nodes"]) == ("shrink", {"exclude": ["n2"], "use": ["n1"]})
    assert decided["id"] == waiting["id"]
    assert commands(client) == [("n1", "restart_ranks"), ("n2", "stop_ranks")]
    entry = audits(client, "action.approve")[0]
    assert (entry.actor, entry.reason, entry.evidence["action"]) == ("admin", "go", "isolate")


def test_a_rejected_isolation_leaves_the_job_its_nodes(client: TestClient, agent: ScriptedAgent) -> None:
    set_mode(client, isolate="approve")
    incident = agent.fail(wait=2)["incident"]
    assert client.post(f"/api/v1/incidents/{incident}/reject", json={"comment": "it is the cable"}).status_code == 200
    decided = agent.fail(wait=60)
    assert (decided["directive"], decided["nodes"]["exclude"]) == ("restart", [])
    assert "rejected by admin: it is the cable" in decided["why"]
    assert audits(client, "action.reject")
    again = client.post(f"/api/v1/incidents/{incident}/reject")
    assert again.status_code == 409
    assert "nothing about incident" in again.json()["detail"]


def test_a_caller_without_a_token_neither_approves_nor_raises_what_reaches_beyond_a_job(
    client: TestClient, agent: ScriptedAgent
) -> None:
    set_mode(client, isolate="approve")
    incident = agent.fail(wait=2)["incident"]
    del client.headers["Authorization"]
    assert client.post(f"/api/v1/incidents/{incident}/approve").status_code == 403
    refused = client.put("/api/v1/modes", json={"modes": {"isolate": "auto"}, "why": "because"})
    assert refused.status_code == 403
    assert "operator's token" in refused.json()["detail"]
    assert client.put("/api/v1/modes", json={"modes": {"restart": "observe"}, "why": "mine"}).status_code == 200


def test_a_job_of_a_caller_without_a_token_is_marked_so(client: TestClient) -> None:
    ScriptedAgent(client, job="mine").register()
    with service_of(client).store.reading() as session:
        assert session.get_one(Job, "mine").local


def test_modes_are_set_for_the_cluster_and_for_one_job_and_go_back_to_the_default(
    client: TestClient, agent: ScriptedAgent
) -> None:
    assert set_mode(client, isolate="suggest")["modes"]["isolate"] == "suggest"
    own = client.put("/api/v1/modes", json={"modes": {"isolate": "auto"}, "job": "gpt", "why": "trial"}).json()
    assert own["modes"]["isolate"] == "auto"
    assert client.get("/api/v1/modes").json()["modes"]["isolate"] == "suggest"
    client.put("/api/v1/modes", json={"modes": {"isolate": None}, "job": "gpt", "why": "over"})
    assert client.get("/api/v1/modes?job=gpt").json()["modes"]["isolate"] == "suggest"
    entries = audits(client, "modes.set")
    assert [entry.target for entry in entries] == ["cluster", "gpt", "gpt"]
    assert entries[1].evidence == {"before": {}, "after": {"isolate": "auto"}}


@pytest.mark.parametrize(
    "document", [{"modes": {}, "why": "x"}, {"modes": {"fly": "auto"}, "why": "x"}, {"modes": {"stop": "auto"}}]
)
def test_a_mode_that_makes_no_sense_is_refused(client: TestClient, admin: dict[str, str], document: dict[str, Any]) -> None:
    assert client.put("/api/v1/modes", json=document, headers=admin).status_code == 422


def test_freezing_stops_all_action_and_says_so_until_it_is_undone(client: TestClient, agent: ScriptedAgent) -> None:
    assert client.post("/api/v1/freeze", json={"on": True, "why": "firmware"}).json()["frozen"]
    frozen = agent.fail(wait=60)
    assert frozen["directive"] == "none"
    assert "frozen (by admin: firmware)" in frozen["why"]
    assert commands(client) == []
    assert client.get("/api/v1/freeze").json() == {"frozen": True, "why": "by admin: firmware"}
    client.post("/api/v1/freeze", json={"on": False})
    agent.generation = 1
    agent.start("self")
    assert agent.fail(wait=60)["directive"] == "restart"
    assert [entry.act for entry in audits(client, "freeze") + audits(client, "unfreeze")] == ["freeze", "unfreeze"]


def test_commands_issued_before_a_freeze_are_not_given_out_during_it(client: TestClient, agent: ScriptedAgent) -> None:
    agent.fail(wait=60)
    client.post("/api/v1/freeze", json={"on": True})
    assert agent.poll() == []
    client.post("/api/v1/freeze", json={"on": False})
    assert len(agent.poll()) == 1
    with service_of(client).store.reading() as session:
        assert session.scalars(select(RecoveryRow)).one().stage == "planned"
