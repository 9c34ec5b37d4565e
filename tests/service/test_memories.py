"""What people settled once is recognised the next time, by the service's memory, after the rules have spoken."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rules.diagnosis import Diagnosis, Evidence, Source
from rules.signal import Role
from rules.taxonomy import load_taxonomy
from service.incidents import FailureReport, apply_diagnosis, open_or_update_incident
from service.memories import NEEDED, Memories

Fail = Callable[..., int]

FIRST = "node7: [rank3]: PhaseLockError: frobnicator 0000:3b:00.0 lost its phase lock after 1234 ms"
AGAIN = "gpu-12: [rank511]: PhaseLockError: frobnicator 0000:86:00.0 lost its phase lock after 9 ms"
OTHER = "ValueError: the tokenizer has no padding token"


@pytest.fixture
def memories(client: TestClient) -> Memories:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"memory is not installed: {missing}")
    service = client.app.state.pitstop  # type: ignore[attr-defined]
    return Memories(service.store, service.clock)


@pytest.fixture
def fail(client: TestClient) -> Fail:
    """Report a failure and store the verdict of the rules on it; returns its incident."""
    service = client.app.state.pitstop  # type: ignore[attr-defined]

    def report(job: str, text: str, reason: str = "unknown", role: Role = Role.ROOT) -> int:
        source = Source.UNKNOWN if reason == "unknown" else Source.RULE
        diagnosis = Diagnosis.of(load_taxonomy()[reason], text, source=source, confidence=0.3, evidence=(Evidence(role, text),))
        with service.store.writing() as session:
            reported = open_or_update_incident(session, FailureReport(job, 0, 1, f"{job}-1"), service.clock())
            return apply_diagnosis(session, reported.incident, diagnosis, service.clock()).id

    return report


def shown(client: TestClient, number: int) -> dict[str, Any]:
    document: dict[str, Any] = client.get(f"/api/v1/incidents/{number}").json()
    return document


def say(client: TestClient, number: int, **body: Any) -> None:
    assert client.post(f"/api/v1/incidents/{number}/feedback", json=body).status_code == 200


def test_a_failure_that_an_operator_named_once_is_recognised_the_second_time(
    client: TestClient, fail: Fail, memories: Memories
) -> None:
    first = fail("one", FIRST)
    memories.work()
    assert shown(client, first)["reason"] == "unknown"
    say(client, first, right=False, reason="nan_loss")
    memories.work()
    again, other = fail("two", AGAIN), fail("three", OTHER)
    memories.work()
    named = shown(client, again)
    assert (named["reason"], named["source"]) == ("nan_loss", "memory")
    assert (named["severity"], named["remedy"]) == ("SEV2", "restart_process")
    assert f"incident {first}" in named["diagnosis"]["ladder"]["why"]
    # What recovery goes on from is the verdict of the rules.
    assert (named["diagnosis"]["reason"], named["diagnosis"]["category"]) == ("unknown", "framework")
    assert shown(client, other)["reason"] == "unknown"
    rungs = [entry["data"]["rungs"] for entry in named["timeline"] if entry["kind"] == "ladder"][-1]
    assert [(rung["rung"], rung["reason"]) for rung in rungs] == [("rule", None), ("memory", "nan_loss")]
    page = client.get(f"/incidents/{again}").text
    assert "The ladder" in page and "similar cases were nan_loss" in page


def test_it_survives_a_restart_and_is_looked_up_once(client: TestClient, fail: Fail, memories: Memories) -> None:
    say(client, fail("one", FIRST), right=False, reason="nan_loss")
    memories.work()
    again = fail("two", AGAIN)
    restarted = Memories(memories.store, memories.clock)
    restarted.work()
    restarted.work()
    entries = [entry for entry in shown(client, again)["timeline"] if entry["kind"] == "ladder"]
    assert len(entries) == 1 and shown(client, again)["reason"] == "nan_loss"


def test_what_an_operator_calls_wrong_is_forgotten(client: TestClient, fail: Fail, memories: Memories) -> None:
    first = fail("one", FIRST)
    say(client, first, right=False, reason="nan_loss")
    memories.work()
    say(client, first, right=False)
    memories.work()
    again = fail("two", AGAIN)
    memories.work()
    assert shown(client, again)["reason"] == "unknown"


def test_a_hardware_fault_is_never_concluded_from_likeness(client: TestClient, fail: Fail, memories: Memories) -> None:
    say(client, fail("one", FIRST), right=False, reason="gpu_fallen_off_bus")
    memories.work()
    again = fail("two", AGAIN)
    memories.work()
    named = shown(client, again)
    assert named["reason"] == "gpu_fallen_off_bus" and named["severity"] == "SEV2"


def test_exit_statuses_alone_are_nothing_to_know_a_failure_by(client: TestClient, fail: Fail, memories: Memories) -> None:
    text = "rank 0 ended with exit code 1"
    say(client, fail("one", text, role=Role.CONTEXT), right=False, reason="nan_loss")
    memories.work()
    again = fail("two", text, role=Role.CONTEXT)
    memories.work()
    assert shown(client, again)["reason"] == "unknown"


def test_what_memory_named_teaches_it_nothing(client: TestClient, fail: Fail, memories: Memories) -> None:
    say(client, fail("one", FIRST), right=False, reason="nan_loss")
    memories.work()
    again = fail("two", AGAIN)
    memories.work()
    assert client.post(f"/api/v1/incidents/{again}/resolve").status_code == 200
    memories.work()
    assert memories.report()["remembered"] == 1


def test_readyz_says_whether_memory_is_on(client: TestClient) -> None:
    report = client.get("/readyz").json()["memory"]
    assert report["on"] is (report["why"] == "settled incidents are remembered")
