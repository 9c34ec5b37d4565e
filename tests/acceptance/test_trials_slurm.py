"""`pitstop trials run --slurm` inside a real allocation of two nodes."""

import json
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from recovery.drivers.slurm import ENDED
from tests.slurm_cluster import SlurmCluster

PITSTOP = Path(sys.executable).with_name("pitstop")

GENERATOR = """
import json, os, sys, time
model, work, marks = sys.argv[1:]
assert os.path.getsize(model) == 1 << 20
mark = os.path.join(marks, os.environ["SLURMD_NODENAME"])
with open(mark + ".part", "w") as file:
    file.write(f"{os.getpid()} {os.getppid()}")
os.rename(mark + ".part", mark)
for line in open(work):
    task = json.loads(line)
    with open(task["output"], "a") as output:
        for sample in range(task["first"], task["last"]):
            time.sleep(0.02)
            output.write(json.dumps({"sample": sample, "output": str(sample)}) + "\\n")
            output.flush()
"""


@pytest.fixture
def site(slurm: SlurmCluster):
    """A folder that every node of the cluster sees, with a specification for two of them."""
    folder = slurm.folder / "trials"
    (folder / "marks").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(bytes(1 << 20))
    (folder / "generate.py").write_text(GENERATOR)
    answers = [{"sample": index, "answer": str(index)} for index in range(400)]
    (folder / "numbers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def submit(slurm: SlurmCluster, site: Path, samples: int, *options: str) -> str:
    document = {
        "run": "slurm",
        "model": "weights.bin",
        "nodes": {"n0": 1, "n1": 1, "n3": 1},
        "startup_seconds": 0.5,
        "generate": f"{sys.executable} {site}/generate.py {{model}} {{work}} {site}/marks",
        "datasets": [
            {"name": name, "samples": samples, "references": "numbers.jsonl", "gpu_seconds": samples / 50, "cpu_seconds": 0.1}
            for name in ("one", "other")
        ],
    }
    (site / "spec.yaml").write_text(yaml.safe_dump(document))
    command = f"{PITSTOP} trials run {site}/spec.yaml --slurm --folder {site}/run --shared-memory {site}/shm"
    return slurm.submit(f"#!/bin/bash\nexec {command}\n", "--nodelist=n[0-1]", "--nodes=2", *options)


def check_verdicts(site: Path, samples: int) -> None:
    for name in ("one", "other"):
        lines = [line for path in (site / "run" / "verdicts" / name).glob("*.jsonl") for line in path.read_text().splitlines()]
        assert Counter(json.loads(line)["sample"] for line in lines) == Counter(range(samples))


@pytest.mark.acceptance
@pytest.mark.timeout(180)
def test_trials_are_steps_on_the_allocated_nodes_that_the_plan_names(slurm: SlurmCluster, site: Path) -> None:
    job = submit(slurm, site, 60)
    slurm.until("the end of the job", lambda: slurm.job(job)["JobState"] in ENDED, 120)
    assert slurm.job(job)["JobState"] == "COMPLETED", slurm.output(job)
    check_verdicts(site, 60)
    assert {path.name for path in (site / "marks").iterdir()} == {"n0", "n1"}, "n3 is not of this allocation"
    report = json.loads((site / "run" / "report.json").read_text())
    assert report["state"] == "finished" and not report["failures"]


@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.timeout(400)
def test_a_node_that_is_lost_costs_no_result(slurm: SlurmCluster, site: Path) -> None:
    """Asked with --no-kill, Slurm keeps the allocation when a node of it goes; the rest of its work goes to the other."""
    job = submit(slurm, site, 400, "--no-kill")
    slurm.until("trials on both nodes", lambda: {path.name for path in (site / "marks").iterdir()} >= {"n0", "n1"}, 120)
    # A machine that dies takes all with it: Slurm's daemon, the step's, and the trial.
    slurm.kill_slurmd("n1")
    for pid in (site / "marks" / "n1").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    slurm.until("the end of the job", lambda: slurm.job(job)["JobState"] in ENDED, 300)
    assert slurm.job(job)["JobState"] == "COMPLETED", slurm.output(job)
    check_verdicts(site, 400)
    assert "n1 gets no more trials: Slurm says that it is" in slurm.output(job)
