"""A node whose agent falls silent: a signal by itself, a lost node with a witness."""

from __future__ import annotations

import time
from typing import Any

from fastapi.testclient import TestClient

from tests.service.scripted_agent import ScriptedAgent


class TwoNodes(ScriptedAgent):
    """Ranks 0 and 1 on n1, 2 and 3 on n2, told of by the agent of n1."""

    def start(self, cause: str = "start") -> None:
        self.running = True
        ranks = [{"rank": rank, "local_rank": rank % 2, "node": f"n{rank // 2 + 1}", "pid": 100 + rank} for rank in range(4)]
        self.post(
            f"jobs/{self.job}/attempts",
            {"attempt": self.generation + 1, "generation": self.generation, "cause": cause, "ranks": ranks},
        )


def lost_peer(**fields: Any) -> dict[str, Any]:
    return {
        "attempt": 1,
        "failed": [{"rank": 0, "node": "n1", "exit_code": 1, "signal": None, "error": "RuntimeError: Connection reset by peer"}],
        "unreachable": [{"node": "n2", "since": time.time(), "why": "its agent closed the connection"}],
        **fields,
    }


def begin(client: TestClient) -> tuple[TwoNodes, ScriptedAgent]:
    one, two = TwoNodes(client, ranks=4), ScriptedAgent(client, node="n2")
    one.register(nodes=["n1", "n2"], ranks=4, min_ranks=2)
    two.lease()
    one.start()
    one.heartbeat(5)
    return one, two


def until(client: TestClient, one: ScriptedAgent, *others: ScriptedAgent) -> dict[str, Any]:
    """The incident, once it was decided upon; the agents renew their leases meanwhile."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for agent in (one, *others):
            agent.lease()
        listed = client.get("/api/v1/incidents?job=gpt").json()["items"]
        incident = client.get(f"/api/v1/incidents/{listed[0]['id']}").json() if listed else {}
        if any(recovery["directive"] for recovery in incident.get("recoveries", ())):
            return dict(incident)
        time.sleep(0.1)
    raise AssertionError("no decision")


def test_a_node_that_is_silent_and_out_of_reach_is_lost_and_the_job_goes_on_without_it(client: TestClient) -> None:
    one, _ = begin(client)
    began = time.monotonic()
    one.fail(**lost_peer())
    incident = until(client, one)
    assert (incident["reason"], incident["severity"], incident["node"]) == ("node_failure", "SEV1", "n2")
    directive = incident["recoveries"][-1]["directive"]
    assert directive["directive"] == "shrink" and directive["nodes"]["exclude"] == ["n2"] and directive["nodes"]["use"] == ["n1"]
    assert time.monotonic() - began >= 1, "not before its lease ran out"
    (restart,) = [command for command in one.poll() if command["kind"] == "restart_ranks"]
    assert restart["args"]["nodes"] == ["n1"]


def test_a_node_that_only_its_peers_cannot_reach_is_not_lost(client: TestClient) -> None:
    one, two = begin(client)
    one.fail(**lost_peer())
    incident = until(client, one, two)
    assert incident["reason"] != "node_failure" and incident["severity"] != "SEV1"
    assert incident["recoveries"][-1]["directive"]["nodes"]["exclude"] == []


def test_a_silent_lease_alone_is_no_loss(client: TestClient) -> None:
    one, _ = begin(client)
    deadline = time.monotonic() + 30
    silent: list[str] = []
    while not silent and time.monotonic() < deadline:
        one.lease()
        silent = client.get("/readyz").json().get("leases", {}).get("silent", [])
        time.sleep(0.1)
    assert silent == ["n2"]
    assert client.get("/api/v1/incidents").json()["items"] == []
    assert one.poll() == []


def test_a_failure_that_spread_from_a_node_within_reach_is_no_witness_against_it(client: TestClient) -> None:
    one, _ = begin(client)
    one.fail(**lost_peer(unreachable=[]))
    incident = until(client, one)
    assert incident["reason"] != "node_failure" and incident["recoveries"][-1]["directive"]["nodes"]["exclude"] == []


def test_a_node_that_turns_out_lost_after_the_decision_is_the_cause_after_all(client: TestClient) -> None:
    one, two = begin(client)
    one.fail(**lost_peer())
    # A renewal that was on its way when the node died.
    two.lease()
    assert until(client, one)["reason"] != "node_failure"
    deadline = time.monotonic() + 30
    restarts: list[dict[str, Any]] = []
    while not any(command["args"]["nodes"] == ["n1"] for command in restarts):
        assert time.monotonic() < deadline, restarts
        one.lease()
        restarts = [command for command in one.poll() if command["kind"] == "restart_ranks"]
        time.sleep(0.1)
    (listed,) = client.get("/api/v1/incidents?job=gpt").json()["items"]
    assert (listed["reason"], listed["severity"], listed["node"]) == ("node_failure", "SEV1", "n2")
