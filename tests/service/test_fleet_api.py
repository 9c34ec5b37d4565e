"""The envelope around the running service: isolation, breaker, maintenance, spares, and the way back over HTTP."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from recovery.drivers.command import parse_templates
from service.site_drivers import SiteDrivers
from tests.service.scripted_agent import ScriptedAgent
from tests.service.test_approvals import commands, fallen_off_the_bus, service_of, set_mode


@pytest.fixture
def agent(client: TestClient, admin: dict[str, str]) -> ScriptedAgent:
    """A job on n1 and n2 with isolation at auto; a GPU of n2 will fall off the bus."""
    service_of(client).recoveries.diagnose = fallen_off_the_bus
    client.headers.update(admin)
    set_mode(client, isolate="auto")
    agent = ScriptedAgent(client)
    agent.register(nodes=["n1", "n2"], min_ranks=1)
    ScriptedAgent(client, node="n2").lease()
    ranks = [{"rank": 0, "node": "n1"}, {"rank": 1, "node": "n2"}]
    agent.post("jobs/gpt/attempts", {"attempt": 0, "generation": 0, "ranks": ranks})
    return agent


def post(client: TestClient, path: str, document: dict[str, Any]) -> Any:
    answer = client.post(f"/api/v1/{path}", json=document)
    assert answer.status_code in (200, 201), answer.json()
    return answer.json()


def returns(client: TestClient) -> list[Any]:
    return list(client.get("/api/v1/returns").json()["items"])


def test_an_isolated_node_is_out_until_people_bring_it_back(client: TestClient, agent: ScriptedAgent) -> None:
    answer = agent.fail(wait=60)
    assert (answer["directive"], answer["nodes"]) == ("shrink", {"exclude": ["n2"], "use": ["n1"]})
    assert client.get("/api/v1/nodes/n2").json()["state"] == "cordoned"
    assert [(item["node"], item["phase"]) for item in returns(client)] == [("n2", "cordoned")]
    assert client.get("/api/v1/breaker").json()["out"] == ["n2"]
    kinds = [entry["kind"] for entry in client.get(f"/api/v1/incidents/{answer['incident']}").json()["timeline"]]
    assert "node.cordoned" in kinds
    post(client, "nodes/n2/repair", {"why": "GPU replaced"})
    assert post(client, "nodes/n2/approve", {"why": "go"})["phase"] == "probing_alone"
    post(client, "nodes/n2/probed", {"paired": False, "passed": True, "detail": "8 of 8"})
    assert post(client, "nodes/n2/probed", {"paired": True, "passed": True, "detail": "with n1"})["phase"] == "probation"
    again = client.post("/api/v1/nodes/n1/repair", json={"why": "x"})
    assert again.status_code == 409


def test_a_node_put_back_by_hand_is_not_isolated_again(client: TestClient, agent: ScriptedAgent) -> None:
    agent.fail(wait=60)
    assert post(client, "nodes/n2/uncordon", {"why": "we need it tonight"})["phase"] == "cancelled"
    agent.generation = 1
    ranks = [{"rank": 0, "node": "n1"}, {"rank": 1, "node": "n2"}]
    agent.post("jobs/gpt/attempts", {"attempt": 1, "generation": 1, "ranks": ranks})
    again = agent.fail(wait=60)
    assert again["directive"] == "restart"
    assert "admin put n2 back by hand" in again["why"]


def test_the_breaker_keeps_the_second_node_in_service(client: TestClient, agent: ScriptedAgent) -> None:
    post(client, "nodes/n1/cordon", {"why": "noisy fan"})
    answer = agent.fail(wait=60)
    assert answer["directive"] == "restart"
    assert "breaker: 2 nodes would be out within the window, the limit is 1" in answer["why"]
    refused = client.post("/api/v1/nodes/n2/cordon", json={"why": "too"})
    assert refused.status_code == 409
    assert "breaker" in refused.json()["detail"]
    wide = client.put("/api/v1/breaker", json={"share": 1.0, "per_rack": 9, "why": "small trial cluster"})
    assert wide.json()["limit"] == 2
    assert client.post("/api/v1/nodes/n2/cordon", json={"why": "too"}).status_code == 200


def test_during_planned_maintenance_nothing_is_isolated(client: TestClient, agent: ScriptedAgent) -> None:
    now = time.time()
    window = post(client, "maintenance", {"start": now - 10, "end": now + 3600, "why": "driver upgrade", "nodes": ["n2"]})
    answer = agent.fail(wait=60)
    assert answer["directive"] == "restart"
    assert "planned maintenance: driver upgrade" in answer["why"]
    assert commands(client) == [("n1", "restart_ranks"), ("n2", "restart_ranks")]
    assert client.get("/api/v1/maintenance").json()["total"] == 1
    assert client.delete(f"/api/v1/maintenance/{window['id']}").status_code == 204
    backwards = client.post("/api/v1/maintenance", json={"start": now, "end": now - 1, "why": "x"})
    assert backwards.status_code == 422


def test_a_free_spare_takes_the_place_of_the_isolated_node(client: TestClient, agent: ScriptedAgent) -> None:
    ScriptedAgent(client, node="n7").lease()
    assert client.put("/api/v1/nodes/n7/place", json={"rack": "r2", "is_spare": True}).status_code == 200
    answer = agent.fail(wait=60)
    assert (answer["directive"], answer["nodes"]["use"]) == ("restart", ["n1", "n7"])


def test_a_dry_run_shows_the_exact_commands_and_does_nothing(client: TestClient, agent: ScriptedAgent) -> None:
    set_mode(client, isolate="observe")
    service_of(client).recoveries.returns.drivers = SiteDrivers(
        parse_templates({"cordon": {"command": ["scontrol", "update", "NodeName={node}", "State=DRAIN", "Reason={why}"]}})
    )
    answer = agent.fail(wait=60)
    assert answer["directive"] == "restart"
    done = commands(client)
    dry = client.get(f"/api/v1/incidents/{answer['incident']}/dry-run").json()
    assert dry["decision"]["action"] == "isolate"
    assert [(told["node"], told["kind"]) for told in dry["commands"]] == [("n1", "restart_ranks"), ("n2", "stop_ranks")]
    assert dry["calls"][0].startswith("scontrol update NodeName=n2 State=DRAIN 'Reason=pitstop 1: gpu_fallen_off_bus")
    assert commands(client) == done
    assert returns(client) == []
    (action,) = client.get("/api/v1/actions?job=gpt").json()["items"]
    assert (action["action"], action["decided_by"], action["state"]) == ("restart", "policy", "issued")


def test_a_caller_without_a_token_takes_no_node_out(client: TestClient, agent: ScriptedAgent) -> None:
    del client.headers["Authorization"]
    for path, document in (("nodes/n1/cordon", {"why": "x"}), ("nodes/n1/uncordon", {"why": "x"})):
        assert client.post(f"/api/v1/{path}", json=document).status_code == 403
    assert client.put("/api/v1/breaker", json={"share": 1.0, "why": "x"}).status_code == 403
