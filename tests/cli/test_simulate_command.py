"""`pitstop simulate` on scenarios, good and bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import run

SCENARIO = """
nodes: 8
days: 7
seeds: 3
tasks:
  - {name: large, model: 7B, weight: 2.0}
  - {name: own, throughput: [0, 1.0e15, 2.0e15, 3.0e15, 4.0e15]}
faults: {node_faults: 5, other_faults: 10, repair_days: [0.1, 0.5], bursts: {groups: 1, size: 2}}
policies: [unicron, megatron, no reconfiguration]
parameters: {cluster.spares: 1}
"""


def simulate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        run(["simulate", *arguments])
        status = 0
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def test_policies_are_compared_on_the_same_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    status, out, _ = simulate(capsys, str(path), "--json")
    assert status == 0
    report = json.loads(out)
    kept = {row["policy"]: row["accumulated_waf"] for row in report["policies"]}
    assert kept["unicron"] > kept["no reconfiguration"] > 0
    assert (
        report["policies"][1]["ratio"]["low"] <= report["policies"][1]["ratio"]["mean"] <= report["policies"][1]["ratio"]["high"]
    )
    assert all(sum(row["lost"].values()) + row["of_its_own_without_failures"] == pytest.approx(1) for row in report["policies"])
    status, again, _ = simulate(capsys, str(path))
    assert status == 0 and "unicron over it" in again and "3 seeds" in again


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("nodes: 8|nodes: many", "nodes is a whole number"),
        ("model: 7B|model: 9B", "model is one of"),
        ("[unicron, megatron|[unicorn, megatron", "no policy 'unicorn'"),
        ("cluster.spares|cluster.spare", "no parameter 'cluster.spare'"),
        ("node_faults: 5|trace: absent.json, node_faults: 5", "absent.json is no fault trace"),
        ("days: 7|weeks: 7", "not 'weeks'"),
        ("repair_days: [0.1, 0.5]|repair_days: 3", "a pair of numbers"),
    ],
)
def test_a_scenario_that_makes_no_sense_gets_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, message: str
) -> None:
    path = tmp_path / "scenario.yaml"
    before, after = change.split("|")
    path.write_text(SCENARIO.replace(before, after), encoding="utf-8")
    status, out, err = simulate(capsys, str(path))
    assert (status, out) == (2, "")
    assert message in err and len(err.strip().splitlines()) == 1


def test_a_name_that_leads_out_of_the_data_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    status, _, said = simulate(capsys, str(path), "--keep", "../out", "--data-dir", str(tmp_path / "data"))
    assert status == 2 and "--keep '../out'" in said and said.count("\n") == 1
