"""A worker of a pipeline is lost under a real service: the recovery adapts the pipelines, in the processes that are left."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.stories.observing import alive, processes_of, settled
from cli.stories.stage import Stage
from recovery.planning.pipeline.plan_set import compute_plan_set, save_plan_set
from recovery.planning.pipeline.specification import parse_specification
from tests.node.peer import ROOT
from tests.sdk.pipeline_job import Reference

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

STAGES, TOTAL, ITERATIONS = 2, 6, 60
SPECIFICATION = {"replicas": 2, "stages": STAGES, "microbatches": 3, "activation_cap": 3}
SCHEDULE = SPECIFICATION | {"unit_seconds": 0.02, "regroup_seconds": 1.0}

# Slow until the test has seen what it came for.
TRAIN = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
import torch
from pitstop.pipeline import Executor
from tests.sdk.pipeline_job import make_task, pad

folder = sys.argv[1]
torch.set_num_threads(1)

def padded(kind, began):
    pad(0.0 if os.path.exists(folder + "/hurry") else 0.02, kind, began)

executor = Executor(make_task({STAGES}, {TOTAL}), plans=folder + "/plans", after=padded)
executor.run({ITERATIONS})
record = {{"worker": executor.worker, "parameters": [parameter.detach() for parameter in executor.stage.parameters]}}
torch.save(record | {{"pid": os.getpid(), "generations": executor.generations}}, folder + "/rank" + executor.member + ".pt")
"""


@pytest.fixture
def script(stage: Stage) -> Path:
    problem = parse_specification(SPECIFICATION).problem
    save_plan_set(compute_plan_set(problem, 1), stage.folder / "plans")
    file = stage.folder / "train.py"
    file.write_text(TRAIN, encoding="utf-8")
    return file


def records(stage: Stage) -> dict[int, dict[str, Any]]:
    import torch

    return {int(path.stem.removeprefix("rank")): torch.load(path) for path in stage.folder.glob("rank*.pt")}


def assert_as_fault_free(found: dict[int, dict[str, Any]]) -> None:
    reference = Reference(STAGES, TOTAL)
    reference.run(ITERATIONS)
    for record in found.values():
        for ours, theirs in zip(record["parameters"], reference.modules[record["worker"][1]].parameters(), strict=True):
            assert (ours - theirs).abs().max() <= 1e-9


def test_a_lost_worker_costs_its_peers_their_speed_and_not_their_processes(stage: Stage, script: Path) -> None:
    stage.serve()
    stage.post("/api/v1/jobs", job="gpt", ranks=4, layout={"pipeline_schedule": SCHEDULE})
    command = [sys.executable, str(script), str(stage.folder)]
    launcher = stage.start("gpt", "run", "--job", "gpt", "--ranks", "4", "--no-spare", "--", *command)
    stage.wait_for("step 4", lambda: stage.step_of("gpt") >= 4, 120)
    before = processes_of(stage, "gpt")
    os.kill(before.pop(3), signal.SIGKILL)
    incident = stage.wait_for("the adaptation to be verified", lambda: settled(stage, "gpt"), 60)
    assert incident is not None
    assert {rank: pid for rank, pid in processes_of(stage, "gpt").items() if rank in before} == before
    told = {entry["kind"]: entry for entry in incident["timeline"]}
    assert told["decided"]["data"]["decision"]["directive"] == "adapt"
    assert "data-parallel peers" in told["decided"]["text"] and "restart in place" in told["decided"]["text"]
    assert {item["kind"] for item in told["priced"]["data"]["alternatives"]} == {"adapt_pipeline", "restart_in_place"}
    (stage.folder / "hurry").touch()
    assert launcher.wait(timeout=60) == 0, (stage.folder / "gpt.log").read_text()
    found = records(stage)
    assert {rank: found[rank]["pid"] for rank in before} == before
    assert_as_fault_free(found)
    assert not any(alive(pid) for pid in before.values())
