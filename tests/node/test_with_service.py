"""Two torch ranks under `pitstop run`, with the real service: kill -9, diagnosis, command, restart, verification."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.node.peer import Runs, wait_for
from tests.service.service_process import ServiceProcess

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

TRAIN = """
import os, sys, time
import pitstop
import torch, torch.distributed as dist
torch.set_num_threads(1)
monitor = pitstop.init()
dist.init_process_group("gloo")
rank, generation = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
until, path = sys.argv[1], sys.argv[2]
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
start = 0
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    start = saved["step"] + 1
print("generation", generation, "resumes at step", start, flush=True)
step = start
while True:
    with monitor.step(step):
        x = torch.randn(16, 8)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.data -= 0.01 * p.grad / 2
            p.grad = None
        stop = torch.tensor([float(os.path.exists(until))])
        dist.all_reduce(stop, op=dist.ReduceOp.MIN)
        if rank == 0:
            with monitor.checkpoint():
                torch.save({"model": model.state_dict(), "step": step}, path + ".new")
                os.replace(path + ".new", path)
    monitor.report(loss=loss.item())
    if stop.item():
        break
    step += 1
    time.sleep(0.02)
dist.destroy_process_group()
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    folder = tmp_path / "service"
    folder.mkdir()
    with ServiceProcess(folder) as process:
        yield process


@pytest.fixture
def runs(tmp_path: Path, service: ServiceProcess) -> Iterator[Runs]:
    launcher = Runs(tmp_path / "node", service.url, python=sys.executable)
    launcher.folder.mkdir()
    yield launcher
    launcher.end()


def get(service: ServiceProcess, path: str) -> Any:
    token = (service.data_dir / "admin.token").read_text().strip()
    answer = httpx2.get(service.url + path, headers={"Authorization": f"Bearer {token}"}, timeout=10)
    return answer.json() if answer.status_code == 200 else {}


def steps(service: ServiceProcess) -> dict[int, int]:
    return {item["rank"]: item["step"] or 0 for item in get(service, "/api/v1/jobs/job").get("rank_states", [])}


def test_a_killed_rank_is_diagnosed_restarted_by_command_and_training_passes_the_step_where_it_died(
    service: ServiceProcess, runs: Runs, tmp_path: Path
) -> None:
    script, flag, checkpoint = tmp_path / "train.py", tmp_path / "finish", tmp_path / "model.pt"
    script.write_text(TRAIN)
    process = runs.start(script, str(flag), str(checkpoint))
    wait_for(lambda: min(steps(service).values(), default=0) >= 5, 90, "training")
    first = runs.state()
    assert first["placement"]["store_port"] and first["placement"]["store"]
    died_at = max(steps(service).values())
    os.kill(next(item["process"]["pid"] for item in first["placement"]["processes"] if item["rank"] == 1), signal.SIGKILL)
    (incident,) = wait_for(lambda: get(service, "/api/v1/incidents").get("items"), 60, "the incident")
    wait_for(lambda: runs.state()["care"]["generation"] == 1 and runs.state()["care"]["phase"] == "running", 60, "the restart")
    assert runs.state()["placement"]["store_port"] != first["placement"]["store_port"], "each generation has a store of its own"
    assert runs.state()["placement"]["store"] == first["placement"]["store"], "in one process"
    page = f"/api/v1/incidents/{incident['id']}"
    wait_for(lambda: get(service, page).get("state") in ("verified", "resolved"), 90, "verification")
    verified = get(service, page)
    assert verified["reason"] == "process_killed_sigkill" and verified["job"] == "job"
    assert min(steps(service).values()) > died_at
    flag.touch()
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "[rank1]: generation 1 resumes at step" in out
    assert "starting generation 1 (restart)" in error
    assert runs.processes() == []
