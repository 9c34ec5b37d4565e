"""A real service and real launchers on a stage of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.stories.stage import Stage, open_stage
from tests.slurm_cluster import SlurmCluster
from tests.slurm_lab import Lab, open_lab

# A job that trains without torch: steps through the monitor, resumes from the step it last wrote down.
STEPPER = """
import os, sys, time
from pathlib import Path
import pitstop

monitor = pitstop.init()
rank = os.environ["RANK"]
mark = Path(sys.argv[1] + "." + rank)
first = int(mark.read_text()) + 1 if mark.exists() else 0
for step in range(first, int(sys.argv[2])):
    with monitor.step(step):
        time.sleep(0.02)
    unfinished = mark.with_name(mark.name + ".unfinished")
    unfinished.write_text(str(step))
    unfinished.replace(mark)
    if step % 10 == 0:
        print(f"iteration {step}", flush=True)
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with open_stage(tmp_path / "stage") as opened:
        yield opened


@pytest.fixture
def launch_stepper(stage: Stage) -> Callable[..., object]:
    """Start two ranks that count steps up to `steps` under `pitstop run`."""
    script = stage.folder / "stepper.py"
    script.write_text(STEPPER, encoding="utf-8")

    def launch(job: str, steps: int = 400, *options: str) -> object:
        command = [sys.executable, str(script), str(stage.folder / f"{job}.mark"), str(steps)]
        return stage.start(job, "run", "--job", job, "--ranks", "2", *options, "--", *command)

    return launch


@pytest.fixture(scope="module")
def lab(slurm_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with open_lab(slurm_cluster, tmp_path_factory.mktemp("lab") / "stage") as opened:
        yield opened
