"""`pitstop evaluate`: only the log of a case reaches the product, and its line numbers come back as indexes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import run

CASE = {
    "id": "x",
    "source": "org/one#1",
    "hard": False,
    "log": ["starting", "[default0]: failed (exitcode: -9) local_rank: 0 (pid: 71) of binary: /usr/bin/python"],
    "culprit_lines": [1],
    "label": {"reason": "process_killed_sigkill", "family": "OutOfMemoryError", "category": "framework", "severity": "SEV2"},
}


def corpus(folder: Path, *cases: object) -> Path:
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    return path


def evaluated(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["evaluate", *arguments])
    assert ended.value.code == 0


def test_predictions_name_the_lines_as_indexes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    evaluated(str(corpus(tmp_path, CASE)), "--predictions", str(out), "--json")
    prediction = json.loads(out.read_text())
    assert (prediction["id"], prediction["reason"], prediction["root_lines"]) == ("x", "process_killed_sigkill", [1])
    report = json.loads(capsys.readouterr().out)
    assert report["measures"]["reason"] == {"rate": 1.0, "count": 1, "of": 1, "interval_95": [0.207, 1.0]}


def test_a_case_without_a_label_is_predicted_and_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(str(corpus(tmp_path, {"id": "x", "log": CASE["log"]})), "--json")
    assert json.loads(capsys.readouterr().out)["cases"] == 0


def test_a_malformed_case_is_refused_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["evaluate", str(corpus(tmp_path, CASE, {"id": "y", "log": "text"}))])
    assert ended.value.code == 2
    assert "cases.jsonl:2" in capsys.readouterr().err


def test_a_missing_corpus_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["evaluate", str(tmp_path / "none.jsonl")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


UNKNOWN_CASE = {
    "id": "u",
    "source": "org/one#2",
    "log": ["starting", "PhaseLockError: frobnicator lost its phase lock"],
    "label": {"reason": "nan_loss", "family": "NaNLoss", "category": "script", "severity": "SEV3"},
}


def test_each_rung_of_the_ladder_says_what_it_was_asked_and_why_it_abstained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Port 9 is `discard`: nobody listens there.
    monkeypatch.setenv("PITSTOP_LLM_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("PITSTOP_LLM_MODEL", "none")
    evaluated(str(corpus(tmp_path, CASE, UNKNOWN_CASE)), "--json", "--ladder", "llm")
    rule, memory, model, unknown = json.loads(capsys.readouterr().out)["rungs"]
    assert (rule["rung"], rule["asked"], rule["answered"], rule["right"]) == ("rule", 2, 1, 1)
    assert (memory["rung"], memory["abstained"]) == ("memory", {"not asked for": 1})
    assert model["rung"] == "llm" and model["answered"] == 0 and "Connection" in next(iter(model["abstained"]))
    assert unknown["rung"] == "unknown"


def test_a_rung_that_is_asked_for_and_not_set_up_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PITSTOP_LLM_BASE_URL", raising=False)
    with pytest.raises(SystemExit) as ended:
        run(["evaluate", str(corpus(tmp_path, CASE)), "--ladder", "llm"])
    assert ended.value.code == 2 and "PITSTOP_LLM_BASE_URL" in capsys.readouterr().err
