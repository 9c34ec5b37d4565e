"""A worker of a pipeline is lost under a real service: the recovery adapts the pipelines, in the processes that are left."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.stories.observing import alive, processes_of, settled
from cli.stories.stage import Stage, free_port
from recovery.planning.pipeline.plan_set import compute_plan_set, save_plan_set
from recovery.planning.pipeline.specification import parse_specification
from tests.node.peer import ROOT
from tests.sdk.pipeline_job import Reference

pytestmark = pytest.mark.timeout(600)

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
    pad(0.0 if os.path.exists(folder + "/hurry") else 0.05, kind, began)

executor = Executor(make_task({STAGES}, {TOTAL}), plans=folder + "/plans", after=padded)
executor.run({ITERATIONS})
record = {{"worker": executor.worker, "parameters": [parameter.detach() for parameter in executor.stage.parameters]}}
torch.save(record | {{"pid": os.getpid(), "generations": executor.generations}}, folder + "/rank" + executor.member + ".pt")
"""


NODES = ("n1", "n2", "n3", "n4")


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


def lose(stage: Stage, node: str) -> None:
    """As a machine that loses its power: the agent, its keeper and all their processes."""
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            marked = f"PITSTOP_NODE={node}\0".encode() in (process / "environ").read_bytes()
            marked = marked and str(stage.folder).encode() in (process / "cmdline").read_bytes()
            if process.name.isdecimal() and (marked or f"{stage.folder / node}".encode() in (process / "cmdline").read_bytes()):
                os.kill(int(process.name), signal.SIGKILL)


def taken_back(stage: Stage) -> dict[str, Any] | None:
    incident = stage.incident_of("gpt")
    return next((entry for entry in (incident or {"timeline": []})["timeline"] if entry["kind"] == "taken_back"), None)


@pytest.mark.acceptance
def test_a_lost_worker_costs_its_peers_their_speed_and_not_their_processes(stage: Stage, script: Path) -> None:
    stage.serve()
    stage.post("/api/v1/jobs", job="gpt", ranks=4, layout={"pipeline_schedule": SCHEDULE})
    command = [sys.executable, str(script), str(stage.folder)]
    launcher = stage.start("gpt", "run", "--job", "gpt", "--ranks", "4", "--no-spare", "--", *command)
    stage.wait_for("step 4", lambda: stage.step_of("gpt") >= 4, 180)
    before = processes_of(stage, "gpt")
    os.kill(before.pop(3), signal.SIGKILL)
    incident = stage.wait_for("the adaptation to be verified", lambda: settled(stage, "gpt"), 180)
    assert incident is not None
    assert {rank: pid for rank, pid in processes_of(stage, "gpt").items() if rank in before} == before
    told = {entry["kind"]: entry for entry in incident["timeline"]}
    assert told["decided"]["data"]["decision"]["directive"] == "adapt"
    assert "data-parallel peers" in told["decided"]["text"] and "restart in place" in told["decided"]["text"]
    assert {item["kind"] for item in told["priced"]["data"]["alternatives"]} == {"adapt_pipeline", "restart_in_place"}
    # The lost worker is started anew and taken in, by nobody's restart.
    told = stage.wait_for("rank 3 to be taken back", lambda: taken_back(stage), 180)
    assert told["data"] == {"ranks": [3], "generation": 2}
    after = processes_of(stage, "gpt")
    assert after.pop(3) is not None and after == before
    (stage.folder / "hurry").touch()
    assert launcher.wait(timeout=180) == 0, (stage.folder / "gpt.log").read_text()
    found = records(stage)
    assert sorted(found) == [0, 1, 2, 3] and {rank: found[rank]["pid"] for rank in before} == before
    assert_as_fault_free(found)
    assert not any(alive(pid) for pid in before.values())


@pytest.mark.soak
@pytest.mark.whole
def test_a_lost_node_is_adapted_around_and_taken_back_when_it_is_there_again(stage: Stage, script: Path) -> None:
    stage.serve()
    stage.post("/api/v1/jobs", job="gpt", ranks=4, layout={"pipeline_schedule": SCHEDULE})
    rendezvous = f"127.0.0.1:{free_port()}"

    def start(node: str) -> Any:
        place = ["--node", node, "--node-rank", str(NODES.index(node)), "--nnodes", "2:4", "--rendezvous", rendezvous]
        command = [sys.executable, str(script), str(stage.folder)]
        folder = str(stage.folder / node)
        return stage.start(node, "run", "--job", "gpt", "--no-spare", "--data-dir", folder, *place, "--", *command)

    launchers = [start(node) for node in NODES[:3]]
    start("n4")
    stage.wait_for("step 4", lambda: stage.step_of("gpt") >= 4, 180)
    before = processes_of(stage, "gpt")
    lose(stage, "n4")
    del before[3]
    incident = stage.wait_for("the adaptation to be verified", lambda: settled(stage, "gpt"), 180)
    assert incident is not None and processes_of(stage, "gpt") == before
    told = {entry["kind"]: entry for entry in incident["timeline"]}
    decision = told["decided"]["data"]["decision"]
    assert (decision["directive"], decision["exclude"], decision["use"]) == ("adapt", ["n4"], ["n1", "n2", "n3"])
    priced = {item["kind"] for item in told["priced"]["data"]["alternatives"]}
    assert {"adapt_pipeline", "shrink", "take_spare", "take_from_other", "wait_for_repair"} <= priced
    launchers.append(start("n4"))
    stage.wait_for("rank 3 to be taken back", lambda: taken_back(stage), 180)
    after = processes_of(stage, "gpt")
    assert after.pop(3) is not None and after == before
    (stage.folder / "hurry").touch()
    assert [launcher.wait(timeout=180) for launcher in launchers] == [0, 0, 0, 0]
    assert sorted(records(stage)) == [0, 1, 2, 3]
    assert_as_fault_free(records(stage))
