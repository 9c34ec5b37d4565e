import json
from pathlib import Path

import numpy as np
import pytest

from cli.main import UsageError
from cli.pipeline import app
from recovery.planning.pipeline.checker import check_plan
from recovery.planning.pipeline.specification import parse_specification

SPECIFICATION = {
    "replicas": 3,
    "stages": 4,
    "microbatches": 6,
    "durations": {"F": 1, "B": 1, "W": 1, "hop": 0},
    "activation_cap": 6,
    "mode": "staggered",
    "failed": [[1, 2]],
    "routing": "own",
}


def plan_document(directory: Path, document: object, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    path = directory / "spec.json"
    path.write_text(json.dumps(document))
    app(["plan", str(path), "--json"], "pitstop pipeline")
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


def test_plan_prints_a_schedule_that_the_checker_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = plan_document(tmp_path, SPECIFICATION, capsys)
    assert [answer[key] for key in ("period", "lower_bound", "fault_free", "one_f_one_b")] == [27, 27, 19, 27]
    assert answer["normalised"] == [[1, 2]]
    rows = np.array([[r, s, "FBW".index(kind), b, start] for r, s, kind, b, start in answer["ops"]])  # type: ignore[attr-defined]
    assert check_plan(parse_specification(SPECIFICATION).problem, rows, 27) == []


def test_a_number_of_failures_is_placed_by_normalisation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {key: value for key, value in SPECIFICATION.items() if key != "failed"} | {"failures": 2, "mode": "coupled"}
    answer = plan_document(tmp_path, document, capsys)
    assert len(answer["normalised"]) == 2  # type: ignore[arg-type]
    assert {kind for _, _, kind, _, _ in answer["ops"]} == {"F", "B"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "fast"}, "coupled, decoupled, staggered"),
        ({"failures": 1}, "not both"),
        ({"stages": "4"}, "stages: a whole number"),
        ({"failed": [[0]]}, r"\[replica, stage\]"),
        ({"colour": 1}, "unknown key 'colour'"),
        ({"failed": [[0, 0], [1, 0], [2, 0]]}, "checkpoint"),
        ({"durations": {"F": 1}}, "B: a whole number"),
    ],
)
def test_a_wrong_specification_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        plan_document(tmp_path, SPECIFICATION | changes, capsys)


def test_simulate_compares_ways_to_go_on_over_the_same_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = tmp_path / "changes.json"
    changes.write_text("[[600, 1], [1200, 1], [1800, -2]]")
    app(["simulate", "--changes", str(changes), "--hours", "1", "--json"], "pitstop pipeline")
    answer = json.loads(capsys.readouterr().out)
    assert answer["failures"] == 2
    rates = {row["policy"]: row["against_own"] for row in answer["policies"]}
    assert 0.5 < rates["bamboo"] < 1 and 0.9 < rates["adapt"] < 1
    changes.write_text("[3]")
    with pytest.raises(UsageError, match="is needed"):
        app(["simulate", "--changes", str(changes)], "pitstop pipeline")
    with pytest.raises(UsageError, match=r"GPT-3 145\.6B"):
        app(["simulate", "--shape", "?"], "pitstop pipeline")
