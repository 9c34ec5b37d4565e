"""How soon what goes wrong is noticed, and whether the right rank is named: by the agent, by torchrun, and by the service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import IO

from tests.node.peer import ROOT, Peer, Runs, wait_for
from tests.node.several_nodes import Nodes
from tests.service.service_process import ServiceProcess

SCRIPT = ROOT / "tests" / "node" / "lockstep.py"
RANKS, VICTIM, STEP, STEP_SECONDS, REPEATS = 3, 1, 15, 0.1, 5
# What the agent says of a fault, where that is another line than the first one about a rank.
ANY_RANK = r"pitstop: (hang: )?rank \d+"
WORDS = {"slow=1.5": r"straggler: rank \d+", "nan": r"not finite: rank \d+", "spike=5": r"loss spike: rank \d+"}
LIMITS = {"kill": "0.2", "raise": "0.1", "stop": "3 x mean + 0.5 = 0.8", "spin": "3 x mean + 0.5 = 0.8"}
STEP_LIMITS = {"slow=1.5": 20, "nan": 3, "spike=5": 3}
# Numbers are judged against those of more steps before them.
LATE = {"spike=5": 40}

Heard = tuple[float, str]


def first_line(stream: IO[str], word: str, seconds: float = 60.0) -> Heard:
    """When the first line with `word` came, and the line; the rest is read on, so that nobody is held up."""
    heard: list[Heard] = []
    pattern = re.compile(word)

    def listen() -> None:
        heard.extend((time.time(), line) for line in stream if pattern.search(line))

    threading.Thread(target=listen, daemon=True).start()
    return wait_for(lambda: heard[:1], seconds)[0]


def environment_of(kind: str, folder: Path) -> dict[str, str]:
    return {"FAULTS": f"{VICTIM}@{LATE.get(kind, STEP)}:{kind}", "FAULTS_STRUCK": str(folder / "struck")}


def by_pitstop(kind: str) -> tuple[float, bool]:
    """(seconds from the fault to the agent's word on it, whether that names the right rank)"""
    peer = Peer()
    peer.up()
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), f"http://127.0.0.1:{peer.port}")
        runs.environment |= environment_of(kind, runs.folder)
        process = runs.start(SCRIPT, str(runs.folder / "finish"), str(STEP_SECONDS), ranks=RANKS)
        assert process.stderr is not None
        try:
            at, line = first_line(process.stderr, WORDS.get(kind, ANY_RANK))
            return at - float((runs.folder / "struck").read_text()), f"rank {VICTIM}" in line
        finally:
            runs.end()
            peer.down()


def by_torchrun(kind: str) -> tuple[float, bool]:
    """The same for torchrun's own word that a rank failed."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | environment_of(kind, Path(folder)) | {"PYTHONPATH": str(ROOT / "sdk")}
        words = [sys.executable, *launcher, str(SCRIPT), f"{folder}/finish", str(STEP_SECONDS)]
        process = subprocess.Popen(
            words, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        try:
            at, line = first_line(process.stderr, r"failed \(exitcode: ")
            return at - float((Path(folder) / "struck").read_text()), f"local_rank: {VICTIM}" in line
        finally:
            process.kill()
            process.wait()


def by_service(service: ServiceProcess, folder: Path) -> tuple[float, float]:
    """Seconds from the death of everything on one of two nodes to (its silent lease told, its loss judged with a witness)."""
    flag = folder / "finish"
    nodes = Nodes(Runs(folder, service.url), Peer(), SCRIPT, flag, folder.name)
    try:
        for node in ("n1", "n2"):
            nodes.start(node, str(STEP_SECONDS))
        wait_for(lambda: nodes.running("n1", 0) and nodes.running("n2", 0), 60)
        # Until the leases of both were renewed, and the mean step is known.
        wait_for(lambda: "n2" in str(service.get("/api/v1/nodes")) and last_step(service, folder.name) > STEP, 60)
        nodes.kill("n2")
        struck = time.time()
        silent = wait_for(lambda: seen(lambda: "n2" in service.get("/readyz").get("leases", {}).get("silent", ())))
        lost = wait_for(lambda: seen(lambda: "node_failure" in str(service.get(f"/api/v1/incidents?job={folder.name}"))))
        return silent - struck, lost - struck
    finally:
        nodes.runs.end()


def last_step(service: ServiceProcess, job: str) -> int:
    return max((item["step"] or 0 for item in service.get(f"/api/v1/jobs/{job}")["rank_states"]), default=0)


def seen(condition: Callable[[], bool]) -> float:
    return time.time() if condition() else 0.0


def run() -> str:
    lines = [
        f"| fault in rank {VICTIM} of {RANKS} | noticed by | median, s | worst, s | required, s | right rank |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for kind, limit in LIMITS.items():
        lines.append(row(kind, "Pitstop", [by_pitstop(kind) for _ in range(REPEATS)], limit))
        if kind in ("kill", "raise"):
            lines.append(row(kind, "torchrun", [by_torchrun(kind) for _ in range(REPEATS)], ""))
    for kind, steps in STEP_LIMITS.items():
        found = [by_pitstop(kind) for _ in range(REPEATS)]
        lines.append(row(kind, "Pitstop", found, f"{steps} steps"))
    with tempfile.TemporaryDirectory() as name, ServiceProcess(Path(name) / "service") as service:
        losses = []
        for repeat in range(REPEATS):
            folder = Path(name) / f"job{repeat}"
            folder.mkdir()
            losses.append(by_service(service, folder))
    silences, judgements = zip(*losses, strict=True)
    lines.append(row("a node's agent and processes killed: silent lease", "Pitstop", [(spent, True) for spent in silences], "3"))
    lines.append(row("the same: node loss with a witness", "Pitstop", [(spent, True) for spent in judgements], "5"))
    note = (
        f"Steps of {STEP_SECONDS} s (1.5 times that in the slow rank); from the moment before the fault to the line on standard"
        " error. torchrun lets ranks that stand still, are slow or diverge go on. torchft has no agent: see in_process.md."
    )
    return "# Noticing\n\n" + note + "\n\n" + "\n".join(lines)


def row(kind: str, who: str, found: list[tuple[float, bool]], limit: str) -> str:
    seconds = [spent for spent, _ in found]
    right = sum(named for _, named in found)
    return f"| {kind} | {who} | {median(seconds):.3f} | {max(seconds):.3f} | {limit} | {right} of {len(found)} |"
