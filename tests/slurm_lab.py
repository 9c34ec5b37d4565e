"""A real Slurm cluster with Pitstop's hooks in it and a service that cares for what runs there."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.stories.stage import Stage, open_stage
from tests.slurm_cluster import SlurmCluster

__all__ = ["XID", "Lab", "open_lab"]

# Trains with torch over gloo; saves on SIGTERM, goes on from what it saved.
TRAINER = """
import signal, sys, time
from pathlib import Path
import torch, torch.distributed as dist
import pitstop

monitor = pitstop.init()
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
dist.init_process_group("gloo")
rank, mark = dist.get_rank(), Path(sys.argv[1])
first = int(mark.read_text()) + 1 if mark.exists() else 0
print(f"rank {rank} of {dist.get_world_size()} from step {first}", flush=True)
for step in range(first, int(sys.argv[2])):
    with monitor.step(step):
        ending = torch.tensor([float(len(told))])
        dist.all_reduce(ending)
        time.sleep(0.05)
    if rank == 0 and (step % 10 == 0 or ending.item()):
        unfinished = mark.with_suffix(".unfinished")
        unfinished.write_text(str(step))
        unfinished.replace(mark)
    if ending.item():
        print(f"rank {rank} saved step {step} and ends", flush=True)
        break
"""
DRIVERS = """
slurm: {timeout_seconds: 20}
probe: {command: [scontrol, show, node, "{node}"]}
probe_pair: {command: [scontrol, show, node, "{node}"]}
"""
XID = "NVRM: Xid (PCI:0000:b3:00.0): 79, pid=1234, name=python, GPU has fallen off the bus."


@dataclass
class Lab:
    """A cluster, and a service that cares for what runs on it."""

    cluster: SlurmCluster
    stage: Stage

    @property
    def token_file(self) -> Path:
        return self.stage.data_directory / "admin.token"

    def submit(self, *options: str, steps: int = 100_000, pitstop: bool = True) -> str:
        """A job of two nodes, one rank each."""
        trainer = self.stage.folder / "trainer.py"
        trainer.write_text(TRAINER)
        python = sys.executable
        launch = f"{python} -m pitstop_entry run -- " if pitstop else ""
        mark = f"{self.stage.folder}/$SLURM_JOB_ID.mark"
        script = f"#!/bin/bash\nsrun {launch}{python} {trainer} {mark} {steps}\n"
        environment = {
            "PITSTOP_SERVICE": self.stage.url,
            "PITSTOP_TOKEN_FILE": str(self.token_file),
            "PITSTOP_DATA_DIR": str(self.stage.folder / "run"),
        }
        return self.cluster.submit(script, "--nodes=2", "--ntasks-per-node=1", *options, environment=environment)

    def saved(self, job: str) -> int:
        mark = self.stage.folder / f"{job}.mark"
        return int(mark.read_text()) if mark.exists() else -1

    def steps(self, job: str, above: int = 3, seconds: float = 180.0) -> int:
        """Wait until both ranks of the present attempt have passed step `above`."""
        self.stage.wait_for(f"job {job} to pass step {above}", lambda: self.stage.step_of(job) > above, seconds)
        return self.stage.step_of(job)

    def call(self, method: str, path: str, document: object, token: str | None = None) -> Any:
        secret = token or self.token_file.read_text().strip()
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        request = urllib.request.Request(self.stage.url + path, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def job(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.stage.get(f"/api/v1/jobs/{job}")
        return found

    def nodes_of(self, job: str) -> set[str]:
        newest = max(self.job(job)["attempts"], key=lambda attempt: attempt["generation"])
        return {rank["node"] for rank in newest["ranks"]}

    def settled(self, job: str, seconds: float = 180.0) -> dict[str, Any]:
        """The job's incident, once its newest recovery is over."""

        def look() -> dict[str, Any] | None:
            incident = self.stage.incident_of(job)
            stages = [recovery["stage"] for recovery in (incident or {}).get("recoveries", [])]
            return incident if stages and stages[-1] in ("verified", "stopped", "escalated") else None

        return self.stage.wait_for(f"the recovery of job {job}", look, seconds)

    def node_token(self, node: str) -> str:
        command = [sys.executable, "-m", "pitstop_entry", "token", "create", f"node-{node}", "--role", "node", "--bind", node]
        done = subprocess.run(
            [*command, "--data-dir", str(self.stage.data_directory)], capture_output=True, text=True, timeout=180, check=True
        )
        return done.stdout.split()[-1]


@contextmanager
def open_lab(cluster: SlurmCluster, folder: Path) -> Iterator[Lab]:
    cluster.reset()
    with pytest.MonkeyPatch.context() as patch, open_stage(folder) as stage:
        drivers = folder / "drivers.yaml"
        drivers.write_text(DRIVERS)
        for name in ("SLURM_CONF", "PATH"):
            patch.setenv(name, cluster.environment[name])
        patch.setenv("PITSTOP_DRIVERS_FILE", str(drivers))
        stage.serve()
        lab = Lab(cluster, stage)
        cluster.tell(stage.url, lab.token_file)
        yield lab
        cluster.tell(None)
        cluster.reset()
