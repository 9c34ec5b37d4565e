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
        ("POST", "/api/v1/jobs", {"json": {"job": "team/gpt"}}, 422),
        ("POST", "/api/v1/jobs", {"json": {"job": ".."}}, 422),
        ("POST", "/api/v1/jobs/unknown/heartbeat", {"json": {"attempt": 0, "generation": 1}}, 404),
        ("GET", "/api/v1/jobs?cursor=nonsense", {}, 422),
        ("GET", "/api/v1/jobs?limit=0", {}, 422),
        ("GET", "/api/v1/logs?from=yesterday", {}, 422),
        ("GET", "/api/v1/logs?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", {}, 422),
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
    assert document["title"] and document["detail"] and "\n" not in document["detail"] and "Value error" not in document["detail"]
    assert client.get("/api/v1/jobs").json()["total"] == 0


def test_every_list_refuses_what_its_filters_and_pages_cannot_be(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    paths, schemas = document["paths"], document["components"]["schemas"]
    named, paged = [], []
    for path, operation in ((path, methods["get"]) for path, methods in paths.items() if "get" in methods and "{" not in path):
        for parameter in operation.get("parameters", ()):
            kinds = [parameter["schema"], *parameter["schema"].get("anyOf", ())]
            kinds = [schemas[kind["$ref"].rsplit("/", 1)[1]] if "$ref" in kind else kind for kind in kinds]
            allowed = [value for kind in kinds for value in kind.get("enum", ())]
            assert allowed or parameter["name"] not in ("state", "severity", "kind", "by"), (path, parameter["name"])
            if allowed:
                answer = client.get(path, params={parameter["name"]: "sev1"})
                assert answer.status_code == 422 and all(value in answer.json()["detail"] for value in allowed), answer.text
                named.append(f"{path} {parameter['name']}")
            if parameter["name"] == "limit":
                assert {client.get(path, params={"limit": wrong}).status_code for wrong in ("-1", "0", "many", "1e9")} == {422}
                paged.append(path)
    assert "/api/v1/incidents severity" in named and len(named) >= 7 and len(paged) >= 12


def test_a_page_that_is_asked_for_an_unknown_value_says_so(client: TestClient) -> None:
    for path in ("/?severity=sev1", "/?state=open", "/jobs?state=lost"):
        shown = client.get(path, headers={"accept": "text/html"})
        assert (shown.status_code, "Input should be" in shown.text) == (422, True)


def test_a_method_that_is_not_taken_is_told_all_that_are(client: TestClient) -> None:
    for method, path, taken in (
        ("PUT", "/api/v1/jobs", "GET, HEAD, POST"),
        ("DELETE", "/api/v1/jobs/train", "GET, HEAD, PATCH"),
        ("PATCH", "/api/v1/logs", "GET, HEAD, POST"),
        ("GET", "/api/v1/jobs/train/heartbeat", "POST"),
        ("POST", "/static/live.js", "GET, HEAD"),
    ):
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, taken), path


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


def test_an_unknown_key_is_told_all_that_there_are(client: TestClient, admin: dict[str, str]) -> None:
    answer = client.put("/api/v1/modes", json={"modes": {"isolat": "approve"}, "why": "trial"}, headers=admin)
    detail = answer.json()["detail"]
    assert answer.status_code == 422 and detail.startswith("body.modes.isolat: Input should be")
    assert "'isolate'" in detail and "'uncordon'" in detail


def test_a_body_that_grows_past_its_limit_unannounced_is_cut_off(client: TestClient) -> None:
    def chunks() -> Any:
        for _ in range(40):
            yield b" " * 65536

    answer = client.post("/api/v1/jobs", content=chunks(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"
