"""A real job, killed for real: its account against what its own ranks wrote down."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import pytest

from cli.stories.observing import processes_of, settled
from cli.stories.stage import Stage

# Steps of 0.1 s, each noted with its time as it ends, until a file tells it to stop; resumes from the last multiple of 20.
STEPPER = """
import sys, time
from pathlib import Path
import pitstop

monitor = pitstop.init()
notes, stop = Path(sys.argv[1]), Path(sys.argv[2])
step = int(notes.read_text().split()[-2]) // 20 * 20 if notes.exists() else 0
with notes.open("a") as out:
    while not stop.exists():
        begun = time.time()
        with monitor.step(step):
            time.sleep(0.1)
        print(f"{begun} {step} {time.time()}", file=out, flush=True)
        step += 1
"""


def truth_of(stage: Stage, job: str) -> dict[str, float]:
    """From the rank's own notes: wall clock from its first step to its last, downtime, steps done again and their seconds."""
    lines = (stage.folder / f"{job}.notes").read_text(encoding="utf-8").splitlines()
    notes = [(float(begun), int(step), float(ended)) for begun, step, ended in map(str.split, lines)]
    high, again, repeated, down, before = -1, 0, 0.0, 0.0, notes[0][0]
    for begun, step, ended in notes:
        down += begun - before if step <= high and repeated == 0 else 0.0
        if step <= high:
            again += 1
            repeated += ended - begun
        high, before = max(high, step), ended
    return {"begun": notes[0][0], "wall": notes[-1][2] - notes[0][0], "down": down, "again": again, "repeated": repeated}


@pytest.mark.acceptance
def test_the_account_of_a_killed_job_adds_up_to_its_wall_clock_within_one_per_cent(stage: Stage) -> None:
    stage.serve()
    script = stage.folder / "stepper.py"
    script.write_text(STEPPER, encoding="utf-8")
    stop = stage.folder / "stop"
    command = [sys.executable, str(script), str(stage.folder / "counted.notes"), str(stop)]
    launcher = stage.start("counted", "run", "--job", "counted", "--ranks", "1", "--", *command)
    stage.wait_for("30 steps", lambda: stage.step_of("counted") >= 30, 180)
    os.kill(processes_of(stage, "counted")[0], signal.SIGKILL)
    stage.wait_for("the recovery to be verified", lambda: settled(stage, "counted"), 180)
    stop.touch()
    assert launcher.wait(timeout=120) == 0
    gone_at = time.time()

    told: dict[str, Any] = stage.get("/api/v1/jobs/counted/account")
    (loss,) = told["losses"]
    truth = truth_of(stage, "counted")
    # The end was heard of between the rank's last step and the launcher's own exit.
    counted = told["wall_seconds"] - told["seconds"]["starting"]
    assert 0.99 * truth["wall"] - 0.3 <= counted <= 1.01 * (gone_at - truth["begun"]) + 0.3
    assert sum(told["seconds"].values()) == pytest.approx(told["wall_seconds"])
    assert loss["time_to_restart_seconds"] == pytest.approx(truth["down"], rel=0.01, abs=0.3)
    # The step that it died in had begun but is not in its notes.
    assert loss["recomputed_steps"] - truth["again"] in (0, 1)
    assert loss["seconds"]["recomputing"] == pytest.approx(truth["repeated"], rel=0.01, abs=0.3)
    assert sum(loss["seconds"].values()) / 3600 == pytest.approx(loss["lost_gpu_hours"])
