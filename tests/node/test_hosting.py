"""Staged checkpoints under `pitstop run`: they outlive their ranks and their agent, and are on disk when the job is over."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from node.ranks import staging_folder
from tests.node.peer import Peer, Runs, wait_for

TRAIN = """
import os, signal, sys, time
import torch
import pitstop

weight = torch.nn.Parameter(torch.zeros(1000))
class Model:
    def state_dict(self): return {"weight": weight.detach()}
    def load_state_dict(self, state): weight.data.copy_(state["weight"])
keeper = pitstop.Checkpointer(sys.argv[1], model=Model())
found = keeper.restore()
print("from", found.step, *found.tiers, flush=True)
step = int(found.step or 0)
while not os.path.exists(sys.argv[2]):
    step += 1
    assert float(weight.detach()[0]) == step - 1
    weight.data += 1
    # In memory only: nothing but the end of its rank brings it to disk.
    keeper.save(step, durable=False)
    print("saved", step, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def job(runs: Runs, tmp_path: Path) -> tuple[Path, Path, Path]:
    runs.python = sys.executable
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    return script, tmp_path / "checkpoints", tmp_path / "finish"


def durable_step(checkpoints: Path) -> int:
    latest = checkpoints / "latest"
    return int(json.loads(latest.read_text())["step"]) if latest.exists() else 0


@pytest.mark.acceptance
def test_what_a_killed_rank_had_staged_goes_to_disk_and_its_successor_takes_it_from_memory(
    runs: Runs, peer: Peer, job: tuple[Path, Path, Path]
) -> None:
    script, checkpoints, flag = job
    process = runs.start(script, str(checkpoints), str(flag), ranks=1, service="http://127.0.0.1:9")
    log = runs.folder / "data/run/job/logs/0/rank0.log"
    wait_for(lambda: log.exists() and "saved 5\n" in log.read_text())
    assert not (checkpoints / "latest").exists()
    os.kill(runs.state()["placement"]["processes"][0]["process"]["pid"], signal.SIGKILL)
    again = log.parent.parent / "1/rank0.log"
    wait_for(lambda: again.exists() and "saved" in again.read_text())
    last = int(log.read_text().split()[-1])
    first = again.read_text().split("\n")[0]
    assert first.endswith("local memory") and int(first.split()[1]) >= last
    wait_for(lambda: durable_step(checkpoints) >= last, 60)
    flag.touch()
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    end = int(again.read_text().split()[-1])
    assert durable_step(checkpoints) == end, error
    assert not staging_folder(runs.folder / "data/run/job").exists() and runs.processes() == []


@pytest.mark.soak
@pytest.mark.whole
def test_an_agent_that_is_killed_loses_no_staged_state(runs: Runs, peer: Peer, job: tuple[Path, Path, Path]) -> None:
    script, checkpoints, flag = job
    first = runs.start(script, str(checkpoints), str(flag), ranks=1)
    log = runs.folder / "data/run/job/logs/0/rank0.log"
    wait_for(lambda: log.exists() and "saved 5\n" in log.read_text())
    host = runs.state()["placement"]["host"] or wait_for(lambda: runs.state()["placement"]["host"])
    first.kill()
    first.wait()
    second = runs.start(script, str(checkpoints), str(flag), ranks=1)
    wait_for(lambda: any(item["cause"] == "takeover" for item in peer.posted("/attempts")))
    assert runs.state()["placement"]["host"] == host
    flag.touch()
    assert second.wait(120) == 0
    assert durable_step(checkpoints) == int(log.read_text().split()[-1])
    assert runs.processes() == []
