"""The model client against an endpoint that behaves as badly as endpoints do."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from agents.budget import Budget
from agents.model import Endpoint, ModelClient, ModelUnavailable, first_object, read_endpoint
from tests.agents.scripted_endpoint import Reply, ScriptedEndpoint, completion

SCHEMA = {"type": "object"}
QUESTION = [{"role": "user", "content": "what broke?"}]


def client_of(server: ScriptedEndpoint, budget: Budget | None = None, **fields: Any) -> ModelClient:
    endpoint = Endpoint(server.base_url, "scripted", **({"timeout_seconds": 5.0} | fields))
    return ModelClient(endpoint, budget, clock=lambda: 0.0, sleep=lambda _seconds: None)


def ask(client: ModelClient, key: str | None = None) -> dict[str, Any]:
    return dict(client.ask(QUESTION, SCHEMA, incident="1", key=key).document)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_refusal_that_may_pass_is_tried_again(endpoint: ScriptedEndpoint, status: int) -> None:
    endpoint.script = lambda _body, number: (status, "{}") if number < 2 else completion('{"a": 1}')
    assert ask(client_of(endpoint)) == {"a": 1}


def test_a_dropped_connection_is_tried_again(endpoint: ScriptedEndpoint) -> None:
    endpoint.script = lambda _body, number: None if number == 0 else completion('{"a": 1}')
    assert ask(client_of(endpoint)) == {"a": 1}


def test_a_slow_endpoint_is_given_up_in_time(endpoint: ScriptedEndpoint) -> None:
    over = threading.Event()

    def script(_body: dict[str, Any], _number: int) -> Reply:
        over.wait(10)
        return None

    endpoint.script = script
    try:
        with pytest.raises(ModelUnavailable, match="timed out"):
            ask(client_of(endpoint, timeout_seconds=0.2, attempts=1))
    finally:
        over.set()


@pytest.mark.parametrize("text", ["I think it is the network", "{", '{"a": ', "[1, 2]", ""])
def test_an_answer_without_an_object_is_unavailable_after_all_attempts(endpoint: ScriptedEndpoint, text: str) -> None:
    endpoint.script = lambda _body, _number: completion(text)
    with pytest.raises(ModelUnavailable):
        ask(client_of(endpoint))
    assert len(endpoint.requests) == 3


def test_a_body_that_is_no_completion_is_unavailable(endpoint: ScriptedEndpoint) -> None:
    endpoint.script = lambda _body, _number: (200, "<html>gateway</html>")
    with pytest.raises(ModelUnavailable):
        ask(client_of(endpoint))


def test_an_endpoint_without_json_schema_is_asked_in_words(endpoint: ScriptedEndpoint) -> None:
    endpoint.script = lambda body, _number: (400, "{}") if "response_format" in body else completion('Sure: {"a": 1}')
    client = client_of(endpoint)
    assert ask(client) == {"a": 1}
    assert json.dumps(SCHEMA) in endpoint.requests[-1]["messages"][-1]["content"]
    ask(client)
    assert len(endpoint.requests) == 3


def test_a_wrong_key_is_not_tried_again(endpoint: ScriptedEndpoint) -> None:
    endpoint.script = lambda _body, _number: (401, "{}")
    with pytest.raises(ModelUnavailable, match="refuses us"):
        ask(client_of(endpoint))
    assert len(endpoint.requests) == 1


def test_an_endpoint_that_keeps_failing_is_left_alone(endpoint: ScriptedEndpoint) -> None:
    endpoint.script = lambda _body, _number: (500, "{}")
    client = client_of(endpoint)
    for _ in range(4):
        with pytest.raises(ModelUnavailable):
            ask(client)
    assert len(endpoint.requests) == 3 and "off for now" in client.state


def test_a_spent_budget_asks_nothing(endpoint: ScriptedEndpoint) -> None:
    endpoint.script = lambda _body, _number: completion('{"a": 1}', tokens=(900, 50))
    client = client_of(endpoint, Budget(tokens_per_incident=1000), max_answer_tokens=100)
    ask(client)
    with pytest.raises(ModelUnavailable, match="budget of 1000 tokens"):
        ask(client)
    assert len(endpoint.requests) == 1


def test_an_equal_question_is_answered_from_the_cache_and_costs_nothing(endpoint: ScriptedEndpoint) -> None:
    endpoint.script = lambda _body, number: completion(json.dumps({"a": number}))
    client = client_of(endpoint)
    assert ask(client, "key") == ask(client, "key") == {"a": 0}
    assert client.ledger.today.tokens == 120


def test_nobody_listening_is_one_clear_error() -> None:
    with pytest.raises(ModelUnavailable, match="Connection"):
        ModelClient(Endpoint("http://127.0.0.1:9/v1", "x", attempts=1)).ask(QUESTION, SCHEMA, incident="1")


def test_the_first_object_is_found_in_prose_and_fences() -> None:
    assert first_object('Well {not json}\n```json\n{"a": {"b": 1}}\n``` {"c": 2}') == {"a": {"b": 1}}


def test_settings_that_cannot_be_used_say_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="PITSTOP_LLM_BASE_URL"):
        read_endpoint("localhost", "m", None)
    with pytest.raises(ModelUnavailable, match="PITSTOP_LLM_MODEL"):
        read_endpoint("http://localhost/v1", None, None)
    with pytest.raises(ModelUnavailable, match="PITSTOP_LLM_API_KEY_FILE"):
        read_endpoint("http://localhost/v1", "m", tmp_path / "absent")


def test_a_key_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    endpoint = read_endpoint("http://localhost/v1/", "m", tmp_path / "key")
    assert endpoint.api_key == "s3cret" and "s3cret" not in repr(endpoint)
