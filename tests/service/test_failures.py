"""Failure reports, directives and commands over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from service.state import Service
from service.store.incidents import Failure, Incident, timeline
from service.store.recoveries import ActionRow, CommandRow, Notification, RecoveryRow
from tests.service.scripted_agent import ScriptedAgent

FIELDS = {"directive", "id", "generation", "incident", "nodes", "resume", "delay_seconds", "expires_at", "why", "mode", "would"}


@pytest.fixture
def agent(client: TestClient) -> ScriptedAgent:
    agent = ScriptedAgent(client)
    agent.register()
    agent.start()
    agent.heartbeat(step=40)
    return agent


def service_of(client: TestClient) -> Service:
    return client.app.state.pitstop  # type: ignore[attr-defined,no-any-return]


def rows(client: TestClient, table: Any) -> list[Any]:
    with service_of(client).store.reading() as session:
        return list(session.scalars(select(table).order_by(table.id)))


def until(condition: Callable[[], Any], seconds: float = 200.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def stage(client: TestClient) -> str:
    return str(rows(client, RecoveryRow)[-1].stage)


def test_a_killed_rank_is_restarted_by_command_and_verified_by_its_steps(client: TestClient, agent: ScriptedAgent) -> None:
    answer = agent.fail(wait=60)
    assert answer["directive"] == "restart"
    assert (answer["generation"], answer["mode"]) == (1, "auto")
    assert answer["why"]
    assert set(answer) == FIELDS
    assert answer["expires_at"].endswith("Z")
    assert until(lambda: agent.obey(wait=5)) == 1
    assert agent.restarts == [1]
    agent.start("restart")
    agent.heartbeat(step=39)
    agent.heartbeat(step=41)
    until(lambda: stage(client) == "verified")
    with service_of(client).store.reading() as session:
        incident = session.scalars(select(Incident)).one()
        entries = timeline(session, incident.id)
    assert incident.state == "verified"
    kinds = [entry.kind for entry in entries if entry.kind != "state"]
    assert kinds == ["detected", "diagnosed", "decided", "planned", "acted", "verified"]
    assert all(entry.seconds is not None for entry in entries if entry.kind in ("decided", "planned", "acted", "verified"))
    assert rows(client, ActionRow)[0].state == "done"


def test_the_same_key_gets_the_same_answer_for_ever(client: TestClient, agent: ScriptedAgent) -> None:
    first = agent.fail(wait=60)
    agent.obey(wait=5)
    agent.start("restart")
    agent.heartbeat(step=50)
    until(lambda: stage(client) == "verified")
    again = client.post("/api/v1/jobs/gpt/failures?wait=0", json=agent.failure("gpt-0", generation=0, attempt=0)).json()
    assert again == first
    assert len(rows(client, Failure)) == 1


def test_agents_of_two_nodes_that_report_one_failure_get_one_recovery(client: TestClient, agent: ScriptedAgent) -> None:
    first = agent.fail(wait=60, key="n1")
    second = agent.fail(wait=60, key="n2")
    assert first == second
    assert len(rows(client, RecoveryRow)) == 1


def test_undecided_is_wait_with_retry_after_and_the_same_id(client: TestClient, agent: ScriptedAgent) -> None:
    ready = threading.Event()
    service = service_of(client)
    known = service.recoveries.diagnose
    service.recoveries.diagnose = lambda incident: (ready.wait(200), known(incident))[1]
    started = time.monotonic()
    response = client.post("/api/v1/jobs/gpt/failures?wait=0", json=agent.failure())
    assert response.status_code == 200
    waiting = response.json()
    assert waiting["directive"] == "wait"
    assert set(waiting) == FIELDS
    assert response.headers["Retry-After"] == "1"
    client.post("/api/v1/jobs/gpt/failures?wait=0.3", json=agent.failure())
    assert time.monotonic() - started < 10
    ready.set()
    decided = client.post("/api/v1/jobs/gpt/failures?wait=60", json=agent.failure()).json()
    assert decided["directive"] == "restart"
    assert decided["id"] == waiting["id"]
    assert "Retry-After" not in client.post("/api/v1/jobs/gpt/failures", json=agent.failure()).headers


def test_the_second_unknown_failure_stops_the_job_and_tells_its_owner(client: TestClient, agent: ScriptedAgent) -> None:
    silent = [{"rank": 1, "node": "n1"}]
    assert agent.fail(wait=60, failed=silent)["directive"] == "restart"
    agent.obey(wait=5)
    agent.start("restart")
    answer = agent.fail(wait=60, failed=silent)
    assert answer["directive"] == "stop"
    until(lambda: agent.obey(wait=5))
    assert agent.stops == [2]
    until(lambda: stage(client) == "stopped")
    told = rows(client, Notification)
    assert [(row.audience, row.recipient) for row in told] == [("owner", "ann@example.org")]
    assert "stop and ask" in told[0].text
    assert [row.stage for row in rows(client, RecoveryRow)] == ["escalated", "stopped"]


def test_a_job_without_an_agent_gets_a_directive_and_no_command(client: TestClient) -> None:
    launcher = ScriptedAgent(client, job="bare", node="n9")
    launcher.post("jobs", {"job": "bare", "ranks": 2})
    launcher.start()
    assert launcher.fail(wait=60)["directive"] == "restart"
    assert rows(client, CommandRow) == []
    launcher.generation = 1
    launcher.start("restart")
    launcher.heartbeat(step=60)
    until(lambda: stage(client) == "verified")


def test_an_agent_that_acted_by_itself_supersedes_the_command(client: TestClient, agent: ScriptedAgent) -> None:
    ready = threading.Event()
    service = service_of(client)
    known = service.recoveries.diagnose
    service.recoveries.diagnose = lambda incident: (ready.wait(200), known(incident))[1]
    agent.fail()
    agent.generation = 1
    agent.start("self")
    ready.set()
    agent.heartbeat(step=41)
    until(lambda: stage(client) == "verified")
    assert rows(client, CommandRow) == []
    assert agent.post("jobs/gpt/failures?wait=5", agent.failure("gpt-0", generation=0, attempt=0))["directive"] == "none"


def test_a_command_is_answered_once_and_to_its_own_node(client: TestClient, agent: ScriptedAgent) -> None:
    agent.fail(wait=60)
    command = until(agent.poll)[0]
    assert set(command) == {"id", "job", "generation", "kind", "args", "deadline"}
    assert (command["kind"], command["generation"], command["job"]) == ("restart_ranks", 1, "gpt")
    result = {"status": "refused", "generation": 0, "detail": "busy"}
    elsewhere = client.post(f"/api/v1/nodes/n2/commands/{command['id']}/result", json=result)
    assert elsewhere.status_code == 404
    first = agent.post(f"nodes/n1/commands/{command['id']}/result", result)
    second = agent.post(f"nodes/n1/commands/{command['id']}/result", {"status": "done", "generation": 1, "detail": ""})
    assert first == second == {"id": command["id"], "status": "refused", "generation": 0}
    assert agent.poll() == []


@pytest.mark.parametrize(
    ("document", "query"),
    [
        ({"idempotency_key": ""}, ""),
        ({"idempotency_key": None}, ""),
        ({"idempotency_key": "k" * 256}, ""),
        ({"generation": -1}, ""),
        ({"generation": "seven"}, ""),
        ({"failed": [{"rank": -1}]}, ""),
        ({"failed": "rank 1"}, ""),
        ({"last_step": 1.5}, ""),
        ({"last_checkpoint": {"step": -5}}, ""),
        ({"last_checkpoint": {"path": "c"}}, ""),
        ({}, "?wait=61"),
        ({}, "?wait=-1"),
        ({}, "?wait=nan"),
        ({}, "?wait=soon"),
    ],
)
def test_a_bad_report_gets_one_clear_problem_and_stores_nothing(
    client: TestClient, agent: ScriptedAgent, document: dict[str, Any], query: str
) -> None:
    response = client.post(f"/api/v1/jobs/gpt/failures{query}", json=agent.failure() | document)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["detail"]
    assert rows(client, Failure) == rows(client, Incident) == rows(client, RecoveryRow) == []


def test_a_report_for_a_job_that_nobody_registered_says_what_to_do(client: TestClient, agent: ScriptedAgent) -> None:
    response = client.post("/api/v1/jobs/unheard/failures", json=agent.failure())
    assert response.status_code == 404
    assert "POST /api/v1/jobs first" in response.json()["detail"]


def test_commands_are_waited_for_and_the_wait_ends_in_time(client: TestClient, agent: ScriptedAgent) -> None:
    started = time.monotonic()
    assert agent.poll(wait=0.3) == []
    assert time.monotonic() - started >= 0.3
    agent.fail()
    assert agent.poll(wait=60)
    with service_of(client).store.reading() as session:
        assert session.scalar(select(func.count()).select_from(CommandRow)) == 1
