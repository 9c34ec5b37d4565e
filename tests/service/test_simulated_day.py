"""A day in which lines never stop: what is kept stays within its budget, and what every open incident rests on still opens."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx2
import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.ingest.matching import MatcherPool
from service.retention import used_bytes
from service.settings import load_settings
from tests.node.peer import wait_for
from tests.service.failed_jobs import fail, service_of
from tests.service.test_retention import Clock

SCALE = float(os.environ.get("SCALE", "1"))
HOURS = max(4, round(24 * SCALE))
PUSHES_AN_HOUR, LINES = 10, 1000
# About a third of what is sent in all, which zstd cannot make smaller than half.
BUDGET = HOURS * 2 * 1024 * 1024
ROOT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def push(client: TestClient, hour: int, number: int) -> httpx2.Response:
    """About 1.2 MB that no routine rule knows."""
    lines = (
        {"job": "stream", "rank": number, "line": f"odd {hour}/{number}/{line} {os.urandom(300).hex()}"} for line in range(LINES)
    )
    return client.post("/api/v1/logs", content="\n".join(map(json.dumps, lines)))


def has_room(client: TestClient) -> bool:
    return bool(service_of(client).checks["storage"]() == "ok")


@pytest.mark.soak
def test_a_day_at_full_rate_stays_within_the_budget_and_every_incident_keeps_its_evidence(
    tmp_path: Path, pool: MatcherPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.app.RETENTION_SECONDS", 0.2)
    monkeypatch.setattr("service.retention.MEASURE_SECONDS", 0.05)
    settings = load_settings(data_dir=tmp_path / "data", max_stored_bytes=BUDGET)
    clock, incidents, taken, refused = Clock(), [], 0, 0
    application = create_app(settings, clock=clock, shared_pool=pool)
    with TestClient(application, base_url="http://localhost", client=("127.0.0.1", 50000)) as client:
        for hour in range(HOURS):
            incidents.append(fail(client, f"job{hour}", (f"step {hour}", ROOT, f"the end of hour {hour}")))
            for number in range(PUSHES_AN_HOUR):
                clock.now += 3600 / PUSHES_AN_HOUR
                while (answer := push(client, hour, number)).status_code == 503:
                    refused += 1
                    assert "retry-after" in answer.headers
                    wait_for(lambda: has_room(client))
                assert answer.status_code == 200, answer.text
                taken += len(answer.request.content)
                assert used_bytes(service_of(client).store) <= BUDGET
        print(f"{HOURS} hours: {taken / BUDGET:.1f} times the budget taken in, {refused} pushes refused until there was room")
        for hour, incident in enumerate(incidents):
            page = client.get(f"/incidents/{incident}/evidence").text
            assert f"<mark>{ROOT}</mark>" in page and f"the end of hour {hour}" in page
        kept = client.get("/api/v1/logs", params={"job": "stream", "limit": 1}).json()["items"]
        assert not kept[0]["line"].startswith("odd 0/0/"), "the oldest lines made room"
