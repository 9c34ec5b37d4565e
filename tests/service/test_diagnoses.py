"""A failed attempt is diagnosed from its kept lines, its exits and what its ranks passed on."""

from __future__ import annotations

from functools import cache
from typing import Any

from rules.artefact import load_compiled
from rules.redaction import redactor
from rules.signal import Role, Trust
from service.diagnoses import StreamContent, rank_contents
from service.ingest.matching import Tools
from service.ingest.preparation import Preparer

SURVIVOR = (
    b"[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
    b"Connection closed by peer [10.0.0.2]:4242\n"
)


@cache
def tools() -> Tools:
    compiled = load_compiled()
    matcher = compiled.matcher()
    return Tools(matcher, redactor(), Preparer(matcher, compiled.shapes, redactor()))


def log_of(rank: int, content: bytes) -> StreamContent:
    return StreamContent(f"rank{rank}.log", content, tuple(range(1, content.count(b"\n") + 1)), rank, "n0", Trust.JOB)


def report(*failed: dict[str, Any]) -> dict[str, Any]:
    return {"attempt": 1, "generation": 0, "failed": list(failed)}


def test_a_rank_that_was_killed_explains_what_its_survivors_complain_of() -> None:
    killed = report({"rank": 1, "node": "n0", "signal": 9, "exit_code": None}, {"rank": 0, "node": "n0", "exit_code": 1})
    diagnosis = rank_contents(tools(), [log_of(0, SURVIVOR), log_of(1, b"iteration 4\n")], [(killed, True)], 2e9)
    assert diagnosis.reason == "process_killed_sigkill"
    roots = [item for item in diagnosis.evidence if item.role is Role.ROOT]
    assert [(item.text, item.rule, item.trust) for item in roots] == [
        ("rank 1 ended with signal 9 on n0", "PS-EXIT-001", Trust.NODE)
    ]


def test_an_exception_counts_that_never_reached_the_log() -> None:
    raised = report({"rank": 2, "node": "n0", "exit_code": 1, "error": "KeyError: 'labels'"})
    diagnosis = rank_contents(tools(), [log_of(2, b"iteration 4\n")], [(raised, False)], 2e9)
    assert diagnosis.reason == "python_key_error"
    assert [item.path for item in diagnosis.evidence if item.role is Role.ROOT] == ["error report of rank 2"]


def test_an_exception_that_the_log_holds_is_quoted_from_the_log_alone() -> None:
    raised = report({"rank": 2, "node": "n0", "exit_code": 1, "error": "KeyError: 'labels'"})
    diagnosis = rank_contents(tools(), [log_of(2, b"iteration 4\nKeyError: 'labels'\n")], [(raised, False)], 2e9)
    assert [(item.path, item.line) for item in diagnosis.evidence if item.role is Role.ROOT] == [("rank2.log", 2)]


def test_a_reported_failure_is_never_called_none() -> None:
    diagnosis = rank_contents(tools(), [log_of(0, b"iteration 4\n")], [(report({"rank": 0, "exit_code": 3}), False)], 2e9)
    assert diagnosis.is_failure
