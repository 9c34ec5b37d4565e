"""A real service and real launchers on a stage of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.stories.stage import Stage, open_stage
from tests.slurm_cluster import SlurmCluster
from tests.slurm_lab import Lab, open_lab

# A job that trains without torch: steps through the monitor until a file tells it to finish, resumes from the step it last
# wrote down.
STEPPER = """
import os, sys, time
from pathlib import Path
import pitstop

monitor = pitstop.init()
rank = os.environ["RANK"]
mark, finish = Path(sys.argv[1] + ".mark." + rank), Path(sys.argv[1] + ".finish")
step = int(mark.read_text()) if mark.exists() else -1
while not finish.exists():
    step += 1
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
    """Start two ranks that count steps under `pitstop run` until `finish`."""
    script = stage.folder / "stepper.py"
    script.write_text(STEPPER, encoding="utf-8")

    def launch(job: str) -> object:
        return stage.start(job, "run", "--job", job, "--ranks", "2", "--", sys.executable, str(script), str(stage.folder / job))

    return launch


@pytest.fixture
def finish(stage: Stage) -> Callable[[str], None]:
    """Let a job that counts steps come to its end."""
    return lambda job: (stage.folder / f"{job}.finish").touch()


@pytest.fixture(scope="module")
def lab(slurm_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with open_lab(slurm_cluster, tmp_path_factory.mktemp("lab") / "stage") as opened:
        yield opened
