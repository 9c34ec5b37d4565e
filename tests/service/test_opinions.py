"""The model is asked beside everything else: one more rung of the ladder, grounded, bounded, without power to act."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.ingest.matching import MatcherPool
from service.memories import Memories
from service.opinions import Opinions, open_client
from service.settings import Settings, load_settings
from service.state import Service
from tests.agents.scripted_endpoint import ScriptedEndpoint, completion, verdict
from tests.service.failed_jobs import fail_with, service_of, shown

LOST = "frobnicator 3 of node7 lost its phase lock"
LINES = ("epoch 1 begins", LOST, "leaving")
QUOTED = [{"number": 2, "text": "frobnicator 3 of <HOST-1> lost its phase lock"}]

Ask = Callable[..., bool]


@pytest.fixture
def service(client: TestClient) -> Service:
    return service_of(client)


def opinions_of(service: Service, base_url: str, **settings: Any) -> Opinions:
    named = load_settings(llm_base_url=base_url, llm_model="scripted", **settings)
    client, off = open_client(named, service.clock)
    assert client is not None, off
    client._sleep = lambda _seconds: None
    return Opinions(service.store, service.clock, client, off, Memories(service.store, service.clock))


@pytest.fixture
def opinions(service: Service, endpoint: ScriptedEndpoint) -> Opinions:
    return opinions_of(service, endpoint.base_url)


@pytest.fixture
def ask(opinions: Opinions) -> Ask:
    """Let memory look first, as it does in the service; then the model."""

    def look() -> bool:
        opinions.memories.work()
        return opinions.work()

    return look


def last_rungs(incident: dict[str, Any]) -> list[tuple[str, str | None]]:
    entry = [entry for entry in incident["timeline"] if entry["kind"] == "opinion"][-1]
    return [(rung["rung"], rung["reason"]) for rung in entry["data"]["rungs"]]


@pytest.mark.parametrize("reason", ["unknown", "process_exit_unattributed"])
def test_a_grounded_answer_names_the_cause_and_changes_nothing_else(
    client: TestClient, ask: Ask, endpoint: ScriptedEndpoint, reason: str
) -> None:
    endpoint.script = lambda _body, _number: verdict(reason="gpu_fallen_off_bus", lines=QUOTED, mitigation="ask <USER-2>")
    number = fail_with(client, "gpt", LINES, reason)
    before = shown(client, number)
    assert ask() and not ask()
    after = shown(client, number)
    assert (after["reason"], after["source"]) == ("gpu_fallen_off_bus", "llm")
    for name in ("severity", "remedy", "state", "fingerprint", "recoveries"):
        assert after[name] == before[name]
    assert after["diagnosis"]["reason"] == reason and after["evidence"] == before["evidence"]
    assert last_rungs(after) == [("rule", None), ("memory", None), ("llm", "gpu_fallen_off_bus")]
    entry = after["timeline"][-1]
    assert entry["actor"] == "llm" and entry["data"]["quotes"] == [{"path": "rank0.log", "line": 2, "text": LOST}]
    assert "node7" not in json.dumps(endpoint.requests) and "alice" not in json.dumps(endpoint.requests)
    assert "gpu_fallen_off_bus" in client.get(f"/incidents/{number}").text


@pytest.mark.parametrize("text", ["<HOST-1> lost its phase lock", "kernel panic"])
def test_an_answer_that_quotes_what_is_not_stored_is_thrown_away(
    client: TestClient, ask: Ask, endpoint: ScriptedEndpoint, text: str
) -> None:
    endpoint.script = lambda _body, _number: verdict(reason="nan_loss", lines=[{"number": 2, "text": text}])
    number = fail_with(client, "gpt", LINES)
    assert ask()
    after = shown(client, number)
    assert after["reason"] == "unknown" and last_rungs(after)[-2:] == [("llm", None), ("unknown", "unknown")]
    assert "not what stands there" in after["timeline"][-1]["text"]


@pytest.mark.parametrize("reply", [None, (500, "{}"), (200, "no json"), completion("[]"), completion(None)])
def test_a_broken_endpoint_is_a_rung_that_abstains(
    client: TestClient, ask: Ask, endpoint: ScriptedEndpoint, reply: tuple[int, str] | None
) -> None:
    endpoint.script = lambda _body, _number: reply
    number = fail_with(client, "gpt", LINES)
    assert ask()
    assert shown(client, number)["reason"] == "unknown" and last_rungs(shown(client, number))[-2:-1] == [("llm", None)]


def test_an_established_verdict_is_never_put_to_the_model(client: TestClient, ask: Ask, endpoint: ScriptedEndpoint) -> None:
    fail_with(client, "gpt", LINES, "nan_loss")
    assert not ask() and not endpoint.requests


def test_a_spent_day_stays_spent_after_a_restart(
    client: TestClient, service: Service, ask: Ask, endpoint: ScriptedEndpoint
) -> None:
    endpoint.script = lambda _body, _number: verdict()
    fail_with(client, "gpt", LINES)
    assert ask()
    asked = len(endpoint.requests)
    fail_with(client, "other", LINES)
    again = opinions_of(service, endpoint.base_url, llm_tokens_per_day=300, llm_price_in=10.0)
    again.memories.work()
    assert not again.work() and len(endpoint.requests) == asked
    report = again.report()
    assert (report["on"], report["tokens_today"], report["cost_today"]) == (False, 360, 0.003)
    assert "budget of 300 tokens" in report["why"]


def test_readyz_says_that_no_model_is_asked_and_why(client: TestClient, service: Service) -> None:
    assert client.get("/readyz").json()["model"]["on"] is False
    _, off = open_client(load_settings(llm_base_url="http://127.0.0.1:1/v1"), service.clock)
    assert "PITSTOP_LLM_MODEL" in off


def test_the_service_ends_at_once_while_the_model_thinks(
    settings: Settings, pool: MatcherPool, endpoint: ScriptedEndpoint
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def think(_body: dict[str, Any], _number: int) -> Any:
        asked.set()
        answer.wait(120)
        return verdict(reason="nan_loss", lines=QUOTED)

    endpoint.script = think
    named = settings.model_copy(update={"llm_base_url": endpoint.base_url, "llm_model": "scripted"})
    try:
        with TestClient(create_app(named, shared_pool=pool), base_url="http://localhost", client=("127.0.0.1", 5)) as client:
            fail_with(client, "gpt", LINES)
            assert asked.wait(120)
            assert client.get("/readyz").json()["model"]["on"] is True
    finally:
        answer.set()
