"""Calls of the real hook scripts, as Slurm makes them, and how long each takes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
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


def job_ends(count: int, settings: Path, at_once: int) -> list[Called]:
    """`count` ends of jobs, `at_once` hooks running at any moment."""

    def one(number: int) -> Called:
        return call(
            "jobcomp", settings, {"JOBID": str(1000 + number), "CLUSTER": "lab", "JOBSTATE": "COMPLETED", "NODES": "n[0-1]"}
        )

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, range(count)))
