"""`pitstop plan`: who should run where, from a description of a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import run

STATE = """
node_mtbf_days: 90
nodes:
  - {names: "n[1-8]", switch: s1}
  - {names: spare, spare: true}
tasks:
  - {name: large, nodes: "n[1-6]", weight: 1.5, throughput: {4: 4e15, 6: 6e15}, minimum: 4, step: 2}
  - {name: small, nodes: "n[7-8]", flops_per_step: 1e15, step_seconds: {1: 2.0, 2: 1.0}}
"""


def planned(folder: Path, *arguments: str, status: int = 0, state: str = STATE) -> None:
    path = folder / "state.yaml"
    path.write_text(state)
    with pytest.raises(SystemExit) as ended:
        run(["plan", str(path), *arguments])
    assert ended.value.code == status


def test_a_lost_node_is_replaced_by_the_spare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned(tmp_path, "--what-if", "node n3 lost", "--json")
    document = json.loads(capsys.readouterr().out)
    large = next(task for task in document["tasks"] if task["name"] == "large")
    assert large["proposed"] == ["n1", "n2", "n4", "n5", "n6", "spare"]
    assert {item["kind"] for item in document["alternatives"]} >= {"plan", "take_spare", "shrink", "wait_for_repair"}


def test_several_what_ifs_add_up_and_are_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned(tmp_path, "--what-if", "node n3 lost", "--what-if", "node n4 lost")
    said = capsys.readouterr().out
    assert "if node n3 lost" in said and "large (hit)" in said and "why: " in said


def test_bad_input_is_one_line_that_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned(tmp_path, "--what-if", "n3 lost", status=2)
    planned(tmp_path, status=2, state="nodes: [")
    planned(tmp_path, status=2, state="nodes: []\ntasks: [{name: a, nodes: n1, throughput: {1: 1}}]")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("pitstop: ") for line in lines), lines
