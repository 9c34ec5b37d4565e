"""Evaluation runs as their coordinators tell of them."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

HOSTILE = "<script>alert(1)</script>"


def told(**fields: Any) -> dict[str, Any]:
    dataset = {"name": HOSTILE, "samples": 10, "generated": 6, "verified": 4, "score": 0.5, "given_up": None}
    bar = {"row": HOSTILE, "label": HOSTILE, "start": 0.0, "end": 4.5, "failed": True}
    return {
        "state": "running",
        "slots": 2,
        "datasets": [dataset],
        "running": [{"slot": "n0:1", "label": "d"}],
        "bars": [bar],
        **fields,
    }


def registered(client: TestClient) -> None:
    assert client.post("/api/v1/jobs", json={"job": "eval-7b", "ranks": 2, "nodes": ["n0"]}).status_code == 201


def test_progress_is_kept_and_the_newest_stands(client: TestClient) -> None:
    registered(client)
    assert client.post("/api/v1/trials/eval-7b", json=told()).json() == {"give_back": []}
    client.post("/api/v1/trials/eval-7b", json=told(state="finished", makespan_seconds=12.5))
    listed = client.get("/api/v1/trials").json()
    assert listed["total"] == 1 and listed["items"][0]["state"] == "finished" and listed["items"][0]["makespan_seconds"] == 12.5


def test_a_run_that_nobody_registered_is_refused(client: TestClient) -> None:
    answer = client.post("/api/v1/trials/stranger", json=told())
    assert answer.status_code == 404 and answer.headers["content-type"].startswith("application/problem+json")


def test_slots_are_asked_back_with_a_reason_that_is_audited(client: TestClient) -> None:
    registered(client)
    client.post("/api/v1/trials/eval-7b", json=told())
    asked = {"nodes": ["n1", "n0", "n1"], "why": "a recovery needs two nodes"}
    assert client.post("/api/v1/trials/eval-7b/slots", json=asked).status_code == 200
    assert client.post("/api/v1/trials/eval-7b", json=told()).json() == {"give_back": ["n0", "n1"]}
    assert "a recovery needs two nodes" in client.get("/actions").text
    client.post("/api/v1/trials/eval-7b/slots", json={"nodes": [], "why": "it is over"})
    assert client.post("/api/v1/trials/eval-7b", json=told()).json() == {"give_back": []}
    assert client.post("/api/v1/trials/eval-7b/slots", json={"nodes": []}).status_code == 422


def test_the_pages_show_the_run_and_escape_what_it_told(client: TestClient) -> None:
    registered(client)
    failure = {"kind": "trial", "row": "n0:0", "label": HOSTILE, "error": HOSTILE}
    client.post(
        "/api/v1/trials/eval-7b", json=told(failures=[failure], saved={"all": 1.75}, state="finished", makespan_seconds=30)
    )
    assert 'href="/trials/eval-7b"' in client.get("/trials").text
    text = client.get("/trials/eval-7b").text
    assert "<svg" in text and "1.75" in text and "0.5000" in text and "4 / 10" in text
    assert HOSTILE not in text
    assert client.get("/trials/nothing").status_code == 404
