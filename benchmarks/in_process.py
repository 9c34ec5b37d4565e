"""A rank is killed: from the last good step to the next one, in the same process under `pitstop run`, and under torchrun."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["run"]

ROOT = Path(__file__).parents[1]
ROUNDS = int(os.environ.get("IN_PROCESS_ROUNDS", "3"))


RANKS, VICTIM, FIRST, SECONDS = 2, 1, 20, 150.0

MODEL = """
import json, os, sys, time
import torch
torch.set_num_threads(1)
torch.manual_seed(1)
inputs = torch.randn(512, 64)
targets = inputs.sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
out = open(sys.argv[1] + os.environ.get("REPLICA_GROUP_ID", os.environ["RANK"]), "a")
def tell(step):
    out.write(json.dumps({"step": step, "time": time.time(), "pid": os.getpid()}) + "\\n")
    out.flush()
def loss_of(ids):
    time.sleep(0.004)
    return torch.nn.functional.mse_loss(model(inputs[ids]), targets[ids])
"""
ELASTIC = """
import pitstop
training = pitstop.Elastic(model, optimizer, pitstop.Sampler(512, 32), loss_of, micro_batches=4)
for step, loss in training.steps(100000):
    tell(step)
    if os.path.exists(sys.argv[1] + "end"):
        os._exit(0)
"""
TORCHRUN = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
# Of torch 2.13, env:// under torchrun meets the addresses of the attempt before in the same store.
met = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
met = dist.PrefixStore("attempt" + os.environ["TORCHELASTIC_RESTART_COUNT"], met)
dist.init_process_group("gloo", store=met, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
bare, model = model, DistributedDataParallel(model)
kept = sys.argv[1] + "kept.pt"
first = 0
if os.path.exists(kept):
    state = torch.load(kept)
    bare.load_state_dict(state["model"])
    first = state["step"] + 1
rank, world = dist.get_rank(), dist.get_world_size()
for step in range(first, 100000):
    for micro in range(rank, 4, world):
        loss_of(list(range(8 * micro, 8 * micro + 8))).backward()
    optimizer.step()
    optimizer.zero_grad()
    tell(step)
    if rank == 0:
        torch.save({"model": bare.state_dict(), "step": step}, kept + ".new")
        os.replace(kept + ".new", kept)
    if os.path.exists(sys.argv[1] + "end"):
        os._exit(0)
"""

# Its lighthouse with 0.5 s where its default is to miss heartbeats for 5 s.
TORCHFT_LAUNCHER = """
import os, subprocess, sys
from torchft.coordination import LighthouseServer
lighthouse = LighthouseServer("127.0.0.1:0", 1, join_timeout_ms=100, quorum_tick_ms=20, heartbeat_timeout_ms=500)
os.environ["TORCHFT_LIGHTHOUSE"] = "http://127.0.0.1:" + lighthouse.address().rpartition(":")[2].strip("/")
torchrun = [os.path.join(os.path.dirname(sys.executable), "torchrun"), "--standalone", "--max-restarts=3"]
groups = [
    subprocess.Popen([*torchrun, *sys.argv[1:]], env={**os.environ, "REPLICA_GROUP_ID": str(group)}) for group in range(RANKS)
]
for group in groups:
    group.wait()
os._exit(0)
"""
TORCHFT = """
import datetime
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
bare, plain = model, optimizer
def load_state_dict(state):
    bare.load_state_dict(state["model"])
    plain.load_state_dict(state["optimizer"])
manager = Manager(
    pg=ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)),
    min_replica_size=1,
    timeout=datetime.timedelta(seconds=5),
    load_state_dict=load_state_dict,
    state_dict=lambda: {"model": bare.state_dict(), "optimizer": plain.state_dict()},
    replica_id="group" + os.environ["REPLICA_GROUP_ID"],
    hostname="127.0.0.1",
)
model = DistributedDataParallel(manager, bare)
optimizer = Optimizer(manager, plain)
while not os.path.exists(sys.argv[1] + "end"):
    step = manager.current_step()
    optimizer.zero_grad()
    rank, world = manager.participating_rank() or 0, max(1, manager.num_participants())
    for micro in range(rank, 4, world):
        loss_of(list(range(8 * micro, 8 * micro + 8))).backward()
    optimizer.step()
    if manager.current_step() > step:
        tell(step)
os._exit(0)
"""


def steps_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    path = folder / f"out{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def wait(look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.01)
    raise RuntimeError(f"{what} did not happen within {SECONDS:.0f} s")


def gap(command: list[str], script: str, folder: Path, number: int = signal.SIGKILL) -> dict[str, Any]:
    """Seconds from the last step that counted to the first one after it, and the steps that were done twice."""
    file = folder / "train.py"
    file.write_text(MODEL + script)
    environment = {**os.environ, "PITSTOP_DATA_DIR": str(folder / "data"), "PITSTOP_SERVICE": "http://127.0.0.1:9"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(file), str(folder / "out")], stdout=log, stderr=log, cwd=ROOT, env=environment, start_new_session=True
        )
    try:
        wait(lambda: len(steps_of(folder, VICTIM)) >= FIRST and len(steps_of(folder, 0)) >= FIRST, "the first steps")
        killed = time.time()
        os.kill(steps_of(folder, VICTIM)[-1]["pid"], number)
        last = max(item["step"] for item in steps_of(folder, 0) if item["time"] <= killed)

        def further() -> dict[str, Any] | None:
            # Of the steps before the loss was felt, those that the survivor finished count.
            done = [item for item in steps_of(folder, 0) if item["time"] > killed and item["step"] > last + 1]
            return done[1] if len(done) > 1 else None

        wait(further, "a step after the loss")
        times = sorted((item["time"], item["step"]) for item in steps_of(folder, 0))
        longest = max((later - earlier, step) for (earlier, _), (later, step) in pairwise(times) if later > killed)
        repeated = len(times) - len({step for _, step in times})
        waited = re.findall(r"did not come for ([0-9.]+) s \(limit ([0-9.]+) s", logs_of(folder))
        free = [float(seconds) - float(limit) for seconds, limit in waited]
        return {"seconds": longest[0], "repeated": repeated, "free": free}
    finally:
        (folder / "outend").touch()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def logs_of(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.glob("data/run/*/logs/*/*.log"))


def run() -> str:
    bin_folder = Path(sys.executable).parent
    contenders: dict[str, tuple[list[str], str]] = {
        "pitstop run, in process": (
            [sys.executable, str(ROOT / "pitstop_entry.py"), "run", "--job", "b", "--ranks", str(RANKS), "--", sys.executable],
            ELASTIC,
        ),
        "torchrun": (
            [
                str(bin_folder / "torchrun"),
                "--standalone",
                f"--nproc-per-node={RANKS}",
                "--max-restarts=3",
                "--monitor-interval=0.1",
            ],
            TORCHRUN,
        ),
    }
    if importlib.util.find_spec("torchft"):
        launcher = TORCHFT_LAUNCHER.replace("RANKS", str(RANKS))
        contenders["torchft 0.2.0"] = ([sys.executable, "-c", launcher], TORCHFT)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, (command, script) in contenders.items():
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(gap(command, script, Path(folder)))
    stopped = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            command, script = contenders["pitstop run, in process"]
            stopped.append(gap(command, script, Path(folder), signal.SIGSTOP))
    lines = [
        "| how | last good step to next good step, s | each round, s | steps done twice | beside pitstop |",
        "|---|---:|---|---:|---:|",
    ]
    ours = median(item["seconds"] for item in found["pitstop run, in process"])
    for name, items in found.items():
        seconds = [item["seconds"] for item in items]
        twice = max(item["repeated"] for item in items)
        each = " ".join(f"{value:.2f}" for value in seconds)
        lines.append(f"| {name} | {median(seconds):.2f} | {each} | {twice} | {median(seconds) / ours:.1f} x |")
    absent = "" if len(contenders) > 2 else " torchft is not installed here and was not measured."
    text = (
        f"{RANKS} ranks on gloo, rank {VICTIM} killed with signal 9, {ROUNDS} rounds in turns; torchrun resumes from a"
        f" checkpoint of every step. Load of the machine at the end {os.getloadavg()[0]:.1f}.{absent}"
    )
    free = [seconds for item in stopped for seconds in item["free"]]
    text += (
        "\n\nA rank stopped with SIGSTOP instead: its peer left the collective "
        + ", ".join(f"{seconds:.3f}" for seconds in free)
        + " s after the threshold (three mean steps and 0.3 s; required: 0.5 s), and the next good step came "
        + ", ".join(f"{item['seconds']:.2f}" for item in stopped)
        + " s after the last one."
    )
    return "# A rank is killed\n\nRequired: 0.5 s, faster than torchrun and torchft.\n\n" + "\n".join(lines) + "\n\n" + text
