"""Every page opens, empty and full, says why it is empty, and lets nothing quoted act."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.service.test_dashboard import HOSTILE, failed_job

PAGES = ("/", "/jobs", "/nodes", "/trials", "/rules", "/learning", "/collectors", "/actions", "/report", "/settings")


def full(client: TestClient) -> int:
    """A hostile job with an attempt and a heartbeat, a node, a line, an incident."""
    job = {"job": "train", "owner": HOSTILE, "project": "p", "command": [HOSTILE], "ranks": 1, "nodes": ["n0"]}
    assert client.post("/api/v1/jobs", json=job).status_code == 201
    attempt: dict[str, Any] = {"attempt": 1, "generation": 0, "cause": "start", "started_at": 1.0}
    attempt["ranks"] = [{"rank": 0, "local_rank": 0, "node": "n0", "pid": 7}]
    assert client.post("/api/v1/jobs/train/attempts", json=attempt).status_code < 300
    beat = {"attempt": 1, "generation": 0, "node": "n0", "time": 2.0, "ranks": [{"rank": 0, "step": 3, "state": "running"}]}
    assert client.post("/api/v1/jobs/train/heartbeat", json=beat).status_code < 300
    lease = {"boot_id": "b", "agent_id": "a", "aliases": [HOSTILE[:20]], "versions": {}, "clock": 1.0}
    assert client.post("/api/v1/nodes/n0/lease", json=lease).status_code == 200
    client.post("/api/v1/logs", content=b'{"line": "hello"}')
    return failed_job(client)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_without_anything_to_show_says_what_to_do(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert 'class="empty"' in answer.text or path in ("/rules", "/settings")
    assert f'href="{path}" aria-current="page"' in answer.text


@pytest.mark.parametrize("path", [*PAGES, "/jobs/train", "/nodes/n0", "/rules/PS-EXIT-001"])
def test_a_full_page_escapes_all_that_came_from_outside(client: TestClient, path: str) -> None:
    full(client)
    answer = client.get(path)
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text and "onload='x'" not in answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_an_incident_leads_to_its_job_and_its_likes(client: TestClient) -> None:
    number = full(client)
    again = failed_job(client, "other")
    text = client.get(f"/incidents/{again}").text
    assert 'href="/jobs/other"' in text and "Seen before" in text and f'href="/incidents/{number}"' in text


def test_the_overview_finds_by_job_and_says_when_it_is_frozen(client: TestClient) -> None:
    number = full(client)
    link = f'href="/incidents/{number}"'
    assert link in client.get("/?contains=trai").text
    assert link not in client.get("/?contains=nothing%25").text
    client.post("/api/v1/freeze", json={"on": True, "why": "storage work"})
    assert "storage work" in client.get("/").text
    assert "storage work" in client.get("/settings").text


def test_what_is_not_there_is_a_404(client: TestClient) -> None:
    for path in ("/jobs/none", "/nodes/none", "/rules/PS-NONE-1"):
        assert client.get(path).status_code == 404


def test_charts_are_drawn_by_the_script_that_the_wheel_ships(client: TestClient) -> None:
    full(client)
    answer = client.get("/static/plotly.js")
    assert answer.status_code == 200 and len(answer.content) > 1_000_000
    assert "data-chart" in client.get("/report").text
