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


@pytest.mark.parametrize("path", ["/", "/healthz", "/api/v1/jobs", "/api/v1/rules", "/nowhere"])
def test_head_answers_as_get_does(client: TestClient, path: str) -> None:
    shown = client.get(path)
    asked = client.head(path)
    assert (asked.status_code, asked.headers["content-type"]) == (shown.status_code, shown.headers["content-type"])


def test_a_body_sent_as_something_else_than_plain_json_is_told_what_to_do(client: TestClient) -> None:
    form = client.post("/api/v1/jobs", content=b'{"job": "train"}', headers={"content-type": "application/x-www-form-urlencoded"})
    assert (form.status_code, "Content-Type: application/json" in form.json()["detail"]) == (422, True)
    packed = client.post("/api/v1/jobs", content=b"...", headers={"content-encoding": "gzip"})
    assert (packed.status_code, "without Content-Encoding" in packed.json()["detail"]) == (415, True)


def test_a_body_that_grows_past_its_limit_unannounced_is_cut_off(client: TestClient) -> None:
    def chunks() -> Any:
        for _ in range(40):
            yield b" " * 65536

    answer = client.post("/api/v1/jobs", content=chunks(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"
