"""Calls of the real hook scripts, as Slurm makes them, how long each takes, and what the service has of them."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "deploy" / "slurm"


@dataclass(frozen=True, slots=True)
class Called:
    """One call: its exit status and its seconds."""

    status: int
    seconds: float


def configuration(folder: Path, service: str, more: str = "") -> Path:
    path = folder / "hooks.conf"
    path.write_text(f"PITSTOP_SERVICE={service}\n{more}\n", encoding="utf-8")
    return path


def call(name: str, settings: Path, environment: Mapping[str, str]) -> Called:
    began = time.monotonic()
    done = subprocess.run(
        [str(FOLDER / name)],
        env={"PITSTOP_HOOK_CONF": str(settings), **environment},
        capture_output=True,
        timeout=30,
        check=False,
    )
    return Called(done.returncode, time.monotonic() - began)


def stored_ends(database: Path, count: int, seconds: float = 60.0) -> int:
    """How many jobs' ends the service has stored, once they are `count`: a hook does not wait until its word is."""
    deadline = time.monotonic() + seconds
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        while True:
            found = connection.execute("select count(distinct slurm_id) from slurm_words where kind = 'job_end'").fetchone()[0]
            if found >= count or time.monotonic() > deadline:
                return int(found)
            time.sleep(0.1)


def job_ends(count: int, settings: Path, seconds: float) -> list[Called]:
    """`count` ends of jobs, evenly over `seconds`, as slurmctld calls its hook: one after the other."""
    began, found = time.monotonic(), []
    for number in range(count):
        time.sleep(max(0.0, began + seconds * number / count - time.monotonic()))
        ended = {"JOBID": str(1000 + number), "CLUSTER": "lab", "JOBSTATE": "COMPLETED", "NODES": "n[0-1]"}
        found.append(call("jobcomp", settings, ended))
    return found
