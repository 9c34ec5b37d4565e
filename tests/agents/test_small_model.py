"""A real small model in the loop: the protocol works from end to end, and what it cannot ground is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from agents.budget import Budget
from agents.evidence import KeptEvidence, question_of
from agents.failure_agent import FailureAgent, Limits, Opinion
from agents.ladder import Ladder, LadderResult
from agents.memory import Vote
from agents.model import Endpoint, ModelClient
from agents.placeholders import Placeholders
from rules.diagnosis import Diagnosis, Evidence, Source
from rules.signal import Role
from rules.taxonomy import UNKNOWN, load_taxonomy
from tests.agents.small_model import missing, small_model

SCALE = float(os.environ.get("SCALE", "0.1"))
# Failures that no rule knows, with the cause that a person would name.
CASES = (
    ("checkpoint_corrupted", "shardmap: footer of part 7 does not add up, the saved state cannot be read back"),
    ("nan_loss", "trainer: objective became not-a-number at iteration 812, giving up"),
    ("dns_resolution_failure", "resolvd: nobody answers for tracker.example.org, lookup given up"),
    ("local_disk_failure", "spool: volume has no room left for another segment"),
    ("gpu_oom", "arena: device memory is used up, 2 GiB could not be had"),
    ("python_key_error", "config: entry labels is not among the entries of the record"),
)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    if absent := missing():
        pytest.skip(f"{', '.join(absent)} not installed: make model")
    with small_model() as url:
        yield url


def climb(base_url: str, line: str) -> tuple[Diagnosis, LadderResult, Opinion, dict[int, str]]:
    """One unknown failure up the whole ladder, memory knowing nothing."""
    lines = {1: "run begins", 2: line, 3: "leaving"}
    evidence = (Evidence(Role.CONTEXT, lines[3], line=3),)
    diagnosis = Diagnosis.of(load_taxonomy()[UNKNOWN], "it ended with exit code 1", source=Source.UNKNOWN, evidence=evidence)
    client = ModelClient(Endpoint(base_url, "smollm2", timeout_seconds=900, attempts=1, max_answer_tokens=400), Budget())
    said: list[Opinion] = []

    def second_opinion(diagnosis: Diagnosis) -> Opinion:
        agent = FailureAgent(client, load_taxonomy(), Limits(samples=1, tool_calls=1))
        said.append(agent.ask(question_of(diagnosis, lines, "1"), KeptEvidence(lines), Placeholders()))
        return said[0]

    ladder = Ladder(load_taxonomy(), lambda _diagnosis: Vote(None, 0.0, "nothing alike"), second_opinion, lambda: 0.0)
    return diagnosis, ladder.climb(diagnosis), said[0], lines


def test_a_real_model_answers_in_the_protocol_and_never_harms_the_verdict(base_url: str) -> None:
    read = ungrounded = answered = right = 0
    chosen = CASES[: max(1, round(len(CASES) * SCALE))]
    for reason, line in chosen:
        before, result, opinion, lines = climb(base_url, line)
        assert opinion.usage.tokens_in > 1000 and opinion.usage.tokens_out > 0, opinion.why
        # A model this small does not always end its answer within the tokens that it may take.
        read += "no whole JSON object" not in opinion.why
        after = result.diagnosis
        assert (after.severity, after.remedy, after.retryable) == (before.severity, before.remedy, before.retryable)
        if opinion.reason is None:
            # Abstained or refused: the verdict is the one without a model, and the rung says why.
            assert after is before and opinion.why
            ungrounded += opinion.why.startswith("refused: ")
        else:
            answered += 1
            right += opinion.reason == reason
            assert opinion.quotes and all(quote in lines.values() for quote in opinion.quotes)
            assert after.source is Source.LLM and after.confidence <= 0.7
        print(f"{reason}: {opinion.reason} ({opinion.why}; refused: {list(opinion.refused)}; {opinion.usage.tokens} tokens)")
    # Without the model none of these is known, so whatever it gets right is a gain.
    print(f"{len(chosen)} failures: {read} answers read, {ungrounded} ungrounded and refused, {answered} stood, {right} right")
    assert read, "no answer was in the protocol"
