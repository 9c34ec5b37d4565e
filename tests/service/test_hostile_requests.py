"""Every operation of the OpenAPI document under requests that no sane client sends: never a 5xx, always a problem document."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.ingest.matching import MatcherPool
from service.settings import load_settings
from tests.service.postgres import postgres

ROUNDS = max(4, int(40 * float(os.environ.get("SCALE", "0.1"))))
TEXTS = [
    "",
    "a",
    "x" * 5000,
    "\u0000",
    "\ud800",
    "\u202e",
    "../../etc/passwd",
    "' OR 1=1 --",
    "<script>",
    "train",
    "n1",
    "0",
    "-1",
    "\n",
    "%s%n",
    "\U0001f525",
]
NUMBERS = [0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, 1e308, -1e308]


def value(chance: random.Random, depth: int = 0) -> Any:
    """Any JSON, small."""
    kind = chance.randrange(7 if depth < 3 else 5)
    match kind:
        case 0:
            return chance.choice([None, True, False])
        case 1 | 2:
            return chance.choice(NUMBERS)
        case 3 | 4:
            return chance.choice(TEXTS)
        case 5:
            return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice([*TEXTS, "rank", "job", "failed"]): value(chance, depth + 1) for _ in range(chance.randrange(4))}


def sound(chance: random.Random, schema: dict[str, Any], root: dict[str, Any], depth: int = 0) -> Any:
    """A value of the schema, more or less: now and then a part of it is anything."""
    if chance.random() < 0.12 or depth > 6:
        return value(chance)
    if "$ref" in schema:
        return sound(chance, root["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], root, depth)
    if "anyOf" in schema:
        return sound(chance, chance.choice(schema["anyOf"]), root, depth + 1)
    if "enum" in schema or "const" in schema:
        return chance.choice(schema.get("enum") or [schema["const"]])
    match schema.get("type"):
        case "object":
            named = schema.get("properties", {})
            needed = schema.get("required", [])
            return {
                name: sound(chance, part, root, depth + 1)
                for name, part in named.items()
                if name in needed or chance.random() < 0.7
            }
        case "array":
            return [sound(chance, schema.get("items", {}), root, depth + 1) for _ in range(chance.randrange(3))]
        case "integer":
            return chance.choice([0, 1, 2, 7, 10**6])
        case "number":
            return chance.choice([0, 0.25, 1.7e9])
        case "boolean":
            return chance.choice([True, False])
        case "null":
            return None
    return chance.choice(TEXTS)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation["operationId"] != "streamEvents":
                yield method.upper(), path, operation


def body_of(chance: random.Random, operation: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if schema is None or chance.random() < 0.1:
        return {
            "content": chance.choice(
                [b"", b"{", b"[]", b"\xff\xfe", b"\x00" * 100, b"[" * 5000, os.urandom(64), b"null", b"1e999"]
            )
        }
    text = json.dumps(sound(chance, schema, root), allow_nan=True)
    return {"content": text.encode("utf-8", "surrogatepass"), "headers": {"Content-Type": "application/json"}}


@pytest.fixture
def hostile(tmp_path: Any, pool: MatcherPool) -> Iterator[TestClient]:
    application = create_app(load_settings(data_dir=tmp_path / "data"), shared_pool=pool)
    local = ("127.0.0.1", 50000)
    with TestClient(application, base_url="http://localhost", client=local, raise_server_exceptions=False) as client:
        yield client


def test_no_request_makes_an_operation_fail_unexpectedly(hostile: TestClient) -> None:
    assault(hostile)


@pytest.mark.acceptance
def test_no_request_makes_an_operation_fail_on_postgresql(tmp_path: Any, pool: MatcherPool) -> None:
    with postgres() as url:
        settings = load_settings(data_dir=tmp_path / "data", database=url)
        application = create_app(settings, shared_pool=pool)
        with TestClient(
            application, base_url="http://localhost", client=("127.0.0.1", 50000), raise_server_exceptions=False
        ) as client:
            assault(client)


def assault(hostile: TestClient) -> None:
    document = hostile.get("/openapi.json").json()
    chance = random.Random(20)
    hostile.post("/api/v1/jobs", json={"job": "train", "ranks": 2})
    hostile.post("/api/v1/jobs/train/attempts", json={"attempt": 0, "generation": 1, "ranks": [{"rank": 0, "node": "n1"}]})
    lease = {"boot_id": "b", "agent_id": "a", "clock": 1.0}
    hostile.post("/api/v1/nodes/n1/lease", json=lease)
    unexpected = []
    for method, path, operation in operations(document):
        for _ in range(ROUNDS):
            names = [part["name"] for part in operation.get("parameters", []) if part["in"] == "path"]
            filled = path
            for name in names:
                filled = filled.replace(
                    "{" + name + "}",
                    chance.choice(["train", "n1", "1", "0", "999999999999999999999", "%00", "%ff", "a%0Ab", "x" * 300]),
                )
            query = [part["name"] for part in operation.get("parameters", []) if part["in"] == "query"]
            given = {
                name: chance.choice(["", "1", "-1", "x" * 2000, "nan", "1e400", "train", "\u0000", "true"])
                for name in query
                if chance.random() < 0.5
            }
            if "wait" in query:
                given["wait"] = chance.choice(["0", "-1", "x", "1e9"])
            answer = hostile.request(method, filled, params=given, **body_of(chance, operation, document))
            allowed = answer.status_code < 500 or (answer.status_code == 503 and "retry-after" in answer.headers)
            shaped = answer.status_code < 400 or answer.headers["content-type"] == "application/problem+json"
            if not (allowed and shaped):
                unexpected.append((method, filled[:80], answer.status_code, answer.text[:200]))
    assert unexpected == []
    assert hostile.get("/readyz").status_code == 200


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_none_are_refused(hostile: TestClient, number: float) -> None:
    hostile.post("/api/v1/jobs", json={"job": "train", "ranks": 2})
    body = json.dumps({"attempt": 0, "generation": 1, "ranks": [], "time": number}).encode()
    answer = hostile.post("/api/v1/jobs/train/heartbeat", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
