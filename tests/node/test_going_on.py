"""Real ranks under `pitstop run` that go on in their processes when one of them is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from node.ranks import monitor_folder
from node.reforming import FORMATION
from tests.node.peer import ROOT, Peer, Runs, wait_for
from tests.node.several_nodes import Nodes
from tests.sdk.elastic.ranks import ledger

pytestmark = pytest.mark.timeout(300)
STEPS = 60

TRAIN = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.sdk.elastic.ranks import train
pace = {{"pause": 0.05, "hurry": sys.argv[2] + "-hurry"}}
options = {{"progress": sys.argv[2], "patient": "HANGS" not in os.environ, **pace}}
train(sys.argv[1] + os.environ["RANK"], {STEPS}, 3, None, options)
"""
# In the environment of ranks of which one is going to hang.
HANGS = {"HANGS": "1"}


@pytest.fixture
def script(runs: Runs, tmp_path: Path) -> Path:
    runs.python = sys.executable
    file = tmp_path / "train.py"
    file.write_text(TRAIN)
    return file


def pids(runs: Runs) -> dict[int, int]:
    return {item["rank"]: item["process"]["pid"] for item in runs.state()["placement"]["processes"]}


def beats(peer: Peer, generation: int = 0) -> int:
    steps = [
        item["step"] or 0 for beat in peer.posted("/heartbeat") if beat["generation"] == generation for item in beat["ranks"]
    ]
    return max(steps, default=0)


@pytest.fixture
def nodes(runs: Runs, peer: Peer, script: Path, tmp_path: Path) -> Nodes:
    made = Nodes(runs, peer, script, tmp_path / "result")
    runs.environment["OMP_NUM_THREADS"] = "1"
    return made


@pytest.mark.acceptance
def test_lost_nodes_cost_the_ranks_of_the_others_neither_their_process_nor_a_step(
    nodes: Nodes, peer: Peer, tmp_path: Path
) -> None:
    for node in ("n1", "n2", "n3"):
        nodes.start(node, str(tmp_path / "progress"), nnodes="1:3", ranks=1, flags=("--no-spare",))
    wait_for(lambda: beats(peer) >= 5, 100, "step 5")
    before = {node: nodes.pids(node) for node in ("n1", "n2")}
    # Two of three may go on by themselves.
    nodes.kill("n3")
    wait_for(lambda: nodes.running("n1", 1) and nodes.running("n2", 1), what="generation 1")
    assert {node: nodes.pids(node) for node in before} == before
    # That n3 is out of reach may have been told before.
    failed = wait_for(lambda: lost_ranks(peer), what="the report of rank 2")[0]
    assert (failed["rank"], failed["node"]) == (2, "n3") and "neither does their agent" in failed["error"]
    attempt = peer.attempt(1, 2)
    assert attempt["cause"] == "self" and [item["rank"] for item in attempt["ranks"]] == [0, 1]
    # One of two may not; and it was the one that led. The service says who goes on: under a new leader, with a store beside it.
    nodes.kill("n1")
    wait_for(lambda: waits(nodes, "n2"), what="the rank that is left")
    nodes.command(1, "n2", 2, ["n2"], exclude=["n1"])
    wait_for(lambda: nodes.running("n2", 2), what="generation 2")
    assert nodes.pids("n2") == before["n2"]
    (tmp_path / "progress-hurry").touch()
    _, said = nodes.agents["n2"].communicate(timeout=120)
    assert nodes.agents["n2"].returncode == 0, said
    assert "leads from now on" in said and peer.posted("commands/1/result")[-1]["status"] == "done"
    found = json.loads((tmp_path / "result1").read_text())
    assert found["first"] == found["last"] == ledger(STEPS, 3) and found["reformed"] == 2
    assert nodes.runs.processes() == []


def lost_ranks(peer: Peer) -> list[dict[str, Any]]:
    return [item for document in peer.posted("/failures") for item in document["failed"] if item["rank"] is not None]


def waits(nodes: Nodes, node: str) -> bool:
    """Whether a rank of this node has left its group and waits to be told."""
    folder = monitor_folder(nodes.runs.data(node) / "run" / "job")
    marks = [json.loads(path.read_text()) for path in folder.glob(f"{FORMATION}.[0-9]")]
    return any(mark["waits_above"] is not None for mark in marks)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed", marks=pytest.mark.acceptance),
        pytest.param(signal.SIGSTOP, id="stopped", marks=[pytest.mark.soak, pytest.mark.whole]),
    ],
)
def test_a_lost_rank_costs_the_others_neither_their_process_nor_a_step(
    runs: Runs, peer: Peer, script: Path, tmp_path: Path, number: signal.Signals
) -> None:
    result, progress = tmp_path / "result", tmp_path / "progress"
    if number == signal.SIGSTOP:
        runs.environment |= HANGS
    process = runs.start(script, str(result), str(progress), ranks=3)
    wait_for(lambda: beats(peer) >= 5, 100, "step 5")
    before = pids(runs)
    os.kill(before[1], number)
    wait_for(lambda: pids(runs) == {0: before[0], 2: before[2]}, what="generation 1")
    assert runs.state()["care"]["generation"] == 1
    (tmp_path / "progress-hurry").touch()
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    found: list[dict[str, Any]] = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("result[0-9]"))]
    assert [item["rank"] for item in found] == [0, 2]
    assert found[0]["checksum"] == found[1]["checksum"] and found[0]["first"] == found[0]["last"] == ledger(STEPS, 3)
    # That it hung was told before; that it has ended is told under the key of the generation that it was lost in.
    ended = [item for item in peer.posted("/failures") if item["idempotency_key"] == "job:0"]
    assert ended and [(item["rank"], item["signal"]) for item in ended[0]["failed"]] == [(1, 9)]
    attempt = peer.posted("/attempts")[-1]
    assert attempt["generation"] == 1 and attempt["cause"] == "self" and [item["rank"] for item in attempt["ranks"]] == [0, 2]
    said = [line for line in peer.lines() if "goes on in generation 1" in line]
    assert len(said) == 2
    seconds = [float(match[1]) for line in said if (match := re.search(r"after ([0-9.]+) s", line))]
    assert len(seconds) == 2
    assert runs.processes() == []
