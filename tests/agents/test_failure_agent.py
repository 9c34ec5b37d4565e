"""The failure agent: bounded, grounded, deaf to what logs tell it to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agents.budget import Budget
from agents.evidence import KeptEvidence, question_of
from agents.failure_agent import FailureAgent, Limits, Opinion, Tool, answer_schema
from agents.model import Endpoint, ModelClient
from agents.placeholders import Placeholders
from rules.diagnosis import Diagnosis, Evidence
from rules.signal import Role
from rules.taxonomy import UNKNOWN, load_taxonomy
from tests.agents.scripted_endpoint import Reply, ScriptedEndpoint, completion, verdict

LINES = {1: "epoch 1 begins", 2: "node7: the frobnicator of alice lost its phase lock", 3: "exiting"}
QUOTED = [{"number": 2, "text": "<HOST-1>: the frobnicator of <USER-2> lost its phase lock"}]
DIAGNOSIS = Diagnosis.of(load_taxonomy()[UNKNOWN], "it ended with exit code 1", evidence=(Evidence(Role.CONTEXT, LINES[3]),))


def asked(server: ScriptedEndpoint, lines: dict[int, str] | None = None, budget: Budget | None = None) -> Opinion:
    lines = LINES if lines is None else lines
    client = ModelClient(Endpoint(server.base_url, "scripted"), budget, clock=lambda: 0.0, sleep=lambda _seconds: None)
    agent = FailureAgent(client, load_taxonomy(), Limits(samples=3, tool_calls=2))
    return agent.ask(question_of(DIAGNOSIS, lines, "1"), KeptEvidence(lines), Placeholders(hosts=("node7",), users=("alice",)))


def test_a_grounded_answer_of_agreeing_samples_is_an_opinion_with_its_lines(endpoint: ScriptedEndpoint) -> None:
    endpoint.script = lambda _body, _number: verdict(reason="nan_loss", lines=QUOTED, mitigation="look at <HOST-1>")
    opinion = asked(endpoint)
    assert (opinion.reason, opinion.lines, opinion.quotes) == ("nan_loss", (2,), (LINES[2],))
    assert opinion.mitigation == "look at node7" and opinion.confidence <= 0.7
    assert opinion.usage.tokens == 360


def test_no_host_or_user_name_leaves_the_machine(endpoint: ScriptedEndpoint) -> None:
    asked(endpoint)
    sent = json.dumps(endpoint.requests)
    assert "node7" not in sent and "alice" not in sent and "phase lock" in sent


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [{"number": 2, "text": "node7: the frobnicator lost its phase lock"}],
        [{"number": 99, "text": "kernel panic"}],
        [*QUOTED, {"number": 1, "text": "epoch 2 begins"}],
        "line 2",
        [{"number": "2", "text": QUOTED[0]["text"]}],
        [None],
    ],
)
def test_an_answer_that_quotes_falsely_is_refused(endpoint: ScriptedEndpoint, lines: Any) -> None:
    endpoint.script = lambda _body, _number: verdict(reason="nan_loss", lines=lines)
    opinion = asked(endpoint)
    assert opinion.reason is None and len(opinion.refused) == 3


@pytest.mark.parametrize("reason", ["gremlins", 7, None, "none", ["nan_loss"]])
def test_a_reason_outside_the_taxonomy_is_refused(endpoint: ScriptedEndpoint, reason: Any) -> None:
    endpoint.script = lambda _body, _number: verdict(reason=reason, lines=QUOTED)
    assert asked(endpoint).reason is None


def test_samples_that_disagree_are_no_opinion(endpoint: ScriptedEndpoint) -> None:
    names = ("nan_loss", "cuda_out_of_memory", "dns_resolution_failure")
    endpoint.script = lambda _body, number: verdict(reason=names[number % 3], lines=QUOTED)
    opinion = asked(endpoint)
    assert opinion.reason is None and "1 of 3" in opinion.why


def test_two_of_three_samples_carry_the_vote(endpoint: ScriptedEndpoint) -> None:
    endpoint.script = lambda _body, number: verdict(reason="unknown" if number == 1 else "nan_loss", lines=QUOTED)
    assert asked(endpoint).reason == "nan_loss"


def test_a_line_found_with_a_tool_may_be_quoted(endpoint: ScriptedEndpoint) -> None:
    lines = {number: f"step {number}" for number in range(1, 200)} | {50: "the flux capacitor melted"}

    def script(body: dict[str, Any], _number: int) -> Reply:
        if len(body["messages"]) == 2:
            return verdict(action="grep", argument="capacitor")
        return verdict(reason="nan_loss", lines=[{"number": 50, "text": lines[50]}])

    endpoint.script = script
    assert asked(endpoint, lines).quotes == ("the flux capacitor melted",)


def test_endless_tool_calls_end(endpoint: ScriptedEndpoint) -> None:
    endpoint.script = lambda _body, _number: verdict(action="grep", argument="e")
    opinion = asked(endpoint)
    assert opinion.reason is None and "tool calls" in opinion.why
    assert len(endpoint.requests) == 9


def test_an_unknown_tool_ends_the_sample(endpoint: ScriptedEndpoint) -> None:
    endpoint.script = lambda _body, _number: verdict(action="drain_node", argument="node7")
    assert asked(endpoint).reason is None and len(endpoint.requests) == 3


@pytest.mark.parametrize("status", [429, 500])
def test_a_broken_endpoint_is_an_abstention_that_says_so(endpoint: ScriptedEndpoint, status: int) -> None:
    endpoint.script = lambda _body, _number: (status, "{}")
    opinion = asked(endpoint)
    assert opinion.reason is None and "Error" in opinion.why


def test_malformed_json_is_an_abstention(endpoint: ScriptedEndpoint) -> None:
    endpoint.script = lambda _body, _number: completion('{"reason": "nan_loss", ')
    assert asked(endpoint).reason is None


def test_the_budget_of_an_incident_is_kept(endpoint: ScriptedEndpoint) -> None:
    endpoint.script = lambda _body, _number: completion(json.dumps({"action": "grep", "argument": "e"}), tokens=(8_000, 100))
    opinion = asked(endpoint, budget=Budget(tokens_per_incident=30_000))
    assert opinion.reason is None and len(endpoint.requests) < 9
    assert "budget of 30000 tokens" in opinion.refused[-1]


def test_nothing_in_the_schema_can_change_anything() -> None:
    schema = answer_schema(load_taxonomy())
    assert set(schema["properties"]["action"]["enum"]) == {"answer", *(tool.value for tool in Tool)}
    assert {"severity", "remedy", "directive", "command"}.isdisjoint(schema["properties"])
