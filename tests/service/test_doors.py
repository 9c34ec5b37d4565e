"""While the database takes nothing, every door that writes says so: 503 with Retry-After, and nothing is acknowledged."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.ingest.matching import MatcherPool
from service.settings import Settings, load_settings
from tests.node.peer import wait_for
from tests.service.postgres import postgres

WHY = {"why": "a test"}
BEAT = {"attempt": 0, "generation": 0}
# By operation, what its body is.
DOORS: dict[str, Any] = {
    "POST /api/v1/alerts/alertmanager": {
        "version": "4",
        "alerts": [{"status": "firing", "labels": {"alertname": "A"}, "fingerprint": "a", "startsAt": "2026-01-01T00:00:00Z"}],
    },
    "POST /api/v1/candidates": {"pattern": "phase lost", "reason": "nan_loss", "title": "a phase", "cited": ["phase lost"]},
    "POST /api/v1/candidates/{number}/approve": {},
    "POST /api/v1/candidates/{number}/rollback": {},
    "POST /api/v1/candidates/{number}/shadow": {},
    "POST /api/v1/freeze": {"on": True},
    "POST /api/v1/incidents/{incident_id}/approve": {},
    "POST /api/v1/incidents/{incident_id}/feedback": {"right": True},
    "POST /api/v1/incidents/{incident_id}/merge": {"into": 2},
    "POST /api/v1/incidents/{incident_id}/reject": {},
    "POST /api/v1/incidents/{incident_id}/resolve": {},
    "POST /api/v1/incidents/{incident_id}/split": {},
    "POST /api/v1/jobs": {"job": "gpt"},
    "POST /api/v1/jobs/{job}/attempts": BEAT,
    "POST /api/v1/jobs/{job}/failures": {**BEAT, "idempotency_key": "gpt:0"},
    "POST /api/v1/jobs/{job}/heartbeat": BEAT,
    "POST /api/v1/localizations": {"nodes": ["n1", "n2"]},
    "POST /api/v1/logs": {
        "job": "gpt",
        "attempt": 0,
        "node": "n1",
        "rank": 0,
        "path": "a.log",
        "number": 1,
        "time": 1e9,
        "line": "RuntimeError: a",
    },
    "POST /api/v1/maintenance": {"start": 1e9, "end": 2e9, **WHY},
    "POST /api/v1/nodes/{node}/approve": WHY,
    "POST /api/v1/nodes/{node}/commands/{id}/result": {"status": "done", "generation": 0},
    "POST /api/v1/nodes/{node}/cordon": WHY,
    "POST /api/v1/nodes/{node}/lease": {"boot_id": "b", "agent_id": "a", "aliases": [], "versions": {}, "clock": 1e9},
    "POST /api/v1/nodes/{node}/probed": {"paired": False, "passed": True, "detail": "well"},
    "POST /api/v1/nodes/{node}/reject": WHY,
    "POST /api/v1/nodes/{node}/repair": WHY,
    "POST /api/v1/nodes/{node}/uncordon": WHY,
    "POST /api/v1/plans": {"propose": True},
    "POST /api/v1/plans/{plan}/approve": {},
    "POST /api/v1/plans/{plan}/reject": {},
    "POST /api/v1/silences": {
        "matchers": [{"name": "job", "value": "gpt"}],
        "endsAt": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
        "comment": "a test",
    },
    "POST /api/v1/slurm/hooks/{kind}": None,
    "POST /api/v1/trials/{run}": {"state": "running"},
    "POST /api/v1/trials/{run}/slots": {"nodes": ["n1"], **WHY},
    "POST /loki/api/v1/push": {"streams": [{"stream": {"job": "gpt"}, "values": [["1700000000000000000", "RuntimeError: a"]]}]},
    "POST /v1/logs": {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "RuntimeError: a"}}]}]}]},
    "PUT /api/v1/breaker": WHY,
    "PUT /api/v1/jobs/{job}/weight": {"weight": 2.0, **WHY},
    "PUT /api/v1/modes": {"modes": {"restart": "observe"}, **WHY},
    "PUT /api/v1/nodes/{node}/place": {},
    "PATCH /api/v1/jobs/{job}": {"owner": "ann"},
    "DELETE /api/v1/maintenance/{id}": None,
    "DELETE /api/v1/silences/{silence_id}": None,
}
# Stores nothing; has nobody to ask without a Slurm.
OTHERS = {"POST /api/v1/diagnose", "POST /api/v1/slurm/jobs/{slurm_id}/{verb}"}
NAMES = {"node": "n1", "job": "gpt", "run": "evaluation", "kind": "epilog"}


def knock(client: TestClient, door: str) -> Any:
    method, path = door.split()
    address = re.sub(r"\{(\w+)\}", lambda found: NAMES.get(found[1], "1"), path)
    # A hook of Slurm sends its environment.
    body = {"content": b"SLURMD_NODENAME=n1\0"} if "slurm" in path else {"json": DOORS[door]}
    return client.request(method, address, **body)


def is_refused(answer: Any) -> bool:
    told = answer.headers.get("content-type") == "application/problem+json" and answer.json()["status"] == 503
    return bool(answer.status_code == 503 and told and int(answer.headers["retry-after"]) > 0)


def entered(settings: Settings, pool: MatcherPool) -> TestClient:
    """A caller whose token is known already: it is the door that has to answer."""
    client = TestClient(create_app(settings, shared_pool=pool), base_url="http://localhost", client=("127.0.0.1", 50000))
    client.__enter__()
    client.headers["Authorization"] = f"Bearer {(settings.data_dir / 'admin.token').read_text().strip()}"
    # The service's own threads may hold the database for longer than a test lets anybody wait for it.
    wait_for(lambda: client.get("/api/v1/jobs").status_code == 200)
    return client


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, pool: MatcherPool) -> Iterator[TestClient]:
    """A caller of a service whose SQLite another process has locked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.store.database.BUSY_TIMEOUT_SECONDS", 0.02)
        settings = load_settings(data_dir=tmp_path_factory.mktemp("locked"))
        client = entered(settings, pool)
        holder = sqlite3.connect(settings.data_dir / "pitstop.sqlite", isolation_level=None, timeout=60)
        holder.execute("BEGIN IMMEDIATE")
        yield client
        holder.close()
        client.__exit__(None, None, None)


@pytest.mark.parametrize("door", DOORS)
def test_a_door_asks_to_be_tried_again_while_the_database_is_locked(locked: TestClient, door: str) -> None:
    answer = knock(locked, door)
    assert is_refused(answer), (answer.status_code, answer.text)


@pytest.mark.soak
@pytest.mark.whole
def test_every_door_asks_to_be_tried_again_while_postgresql_is_down(tmp_path: Path, pool: MatcherPool) -> None:
    with postgres() as url:
        client = entered(load_settings(data_dir=tmp_path, database=url), pool)
    try:
        answers = {door: knock(client, door) for door in DOORS}
    finally:
        client.__exit__(None, None, None)
    assert [(door, answer.status_code, answer.text) for door, answer in answers.items() if not is_refused(answer)] == []


def test_no_door_that_writes_is_missing_here(locked: TestClient) -> None:
    paths = locked.get("/openapi.json").json()["paths"]
    found = {f"{method.upper()} {path}" for path, operations in paths.items() for method in operations}
    assert {door for door in found if not door.startswith("GET ")} == DOORS.keys() | OTHERS
