"""Jobs that failed, with their lines kept and the verdict of the rules stored: what memory, model and learning go on from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi.testclient import TestClient

from rules.diagnosis import Diagnosis, Evidence, Source
from rules.signal import Role
from rules.taxonomy import UNKNOWN, load_taxonomy
from service.diagnoses import Diagnoses
from service.incidents import FailureReport, apply_diagnosis, open_or_update_incident
from service.state import Service
from tests.node.peer import wait_for


def service_of(client: TestClient) -> Service:
    found: Service = client.app.state.pitstop  # type: ignore[attr-defined]
    return found


def register(client: TestClient, job: str, node: str = "node7", **fields: Any) -> None:
    document = {"job": job, "owner": "alice", "contact": "a@example.org", "ranks": 1, "nodes": [node], "command": ["x"]}
    assert client.post("/api/v1/jobs", json=document | fields).status_code == 201


def send(client: TestClient, job: str, lines: Sequence[str], rank: int = 0) -> None:
    sent = [
        {"job": job, "attempt": 0, "rank": rank, "path": f"rank{rank}.log", "number": number, "line": line}
        for number, line in enumerate(lines, 1)
    ]
    body = "\n".join(map(json.dumps, sent))

    def status() -> int | None:
        """None where there is no room for it now: agents send it again."""
        code = client.post("/api/v1/logs", content=body).status_code
        return None if code == 503 else code

    assert wait_for(status) == 200


def report(job: str, node: str = "node7", rank: int = 0) -> FailureReport:
    return FailureReport(job, 0, 1, f"{job}-1", ({"rank": rank, "node": node, "exit_code": 1},))


def fail_with(client: TestClient, job: str, lines: Sequence[str], reason: str = UNKNOWN) -> int:
    """A failure whose verdict is given: `reason`, on the exit status alone. Returns its incident."""
    service = service_of(client)
    register(client, job)
    send(client, job, lines)
    source = Source.UNKNOWN if reason == UNKNOWN else Source.RULE
    evidence = (Evidence(Role.ROOT, "rank 0 ended with exit code 1"),)
    diagnosis = Diagnosis.of(load_taxonomy()[reason], "it ended", source=source, confidence=0.3, evidence=evidence)
    with service.store.writing() as session:
        reported = open_or_update_incident(session, report(job), service.clock())
        return apply_diagnosis(session, reported.incident, diagnosis, service.clock()).id


def fail(client: TestClient, job: str, lines: Sequence[str], node: str = "node7", rank: int = 0) -> int:
    """A failure that the matcher process diagnoses from its kept lines, as the service does. Returns its incident."""
    service = service_of(client)
    register(client, job, node)
    send(client, job, lines, rank)
    with service.store.writing() as session:
        incident = open_or_update_incident(session, report(job, node, rank), service.clock()).incident
    diagnosis = Diagnoses(service.store, service.pool, service.metrics, service.clock).of_incident(incident.id)
    with service.store.writing() as session:
        return apply_diagnosis(session, session.merge(incident), diagnosis, service.clock()).id


def shown(client: TestClient, number: int) -> dict[str, Any]:
    document: dict[str, Any] = client.get(f"/api/v1/incidents/{number}").json()
    return document


def say(client: TestClient, number: int, **body: Any) -> None:
    """What an operator says of a verdict."""
    assert client.post(f"/api/v1/incidents/{number}/feedback", json=body).status_code == 200
