"""Every error is one problem document."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient


@pytest.mark.parametrize(
    ("method", "path", "request_", "status"),
    [
        ("GET", "/nowhere", {}, 404),
        ("PUT", "/api/v1/jobs", {"json": {}}, 405),
        ("POST", "/api/v1/jobs", {"json": {"ranks": 2}}, 422),
        ("POST", "/api/v1/jobs", {"content": b"{"}, 422),
        ("POST", "/api/v1/jobs", {"content": b"\xff\xfe{}", "headers": {"content-type": "application/json"}}, 422),
        ("POST", "/api/v1/jobs", {"content": b"[" * 100_000, "headers": {"content-type": "application/json"}}, 400),
        ("POST", "/api/v1/jobs", {"content": b" " * 1_100_000, "headers": {"content-type": "application/json"}}, 413),
        ("POST", "/api/v1/jobs", {"json": {"job": "a\nb"}}, 422),
        ("POST", "/api/v1/jobs/unknown/heartbeat", {"json": {"attempt": 0, "generation": 1}}, 404),
        ("GET", "/api/v1/jobs?cursor=nonsense", {}, 422),
        ("GET", "/api/v1/jobs?limit=0", {}, 422),
    ],
)
def test_an_error_is_a_problem_document(
    client: TestClient, method: str, path: str, request_: dict[str, Any], status: int
) -> None:
    answer = client.request(method, path, **request_)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == status
    assert document["type"] == "about:blank"
    assert document["title"] and document["detail"] and "\n" not in document["detail"]
    assert client.get("/api/v1/jobs").json()["total"] == 0


def test_a_body_that_grows_past_its_limit_unannounced_is_cut_off(client: TestClient) -> None:
    def chunks() -> Any:
        for _ in range(40):
            yield b" " * 65536

    answer = client.post("/api/v1/jobs", content=chunks(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"
