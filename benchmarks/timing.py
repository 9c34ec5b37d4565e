"""Time whole processes in turns on one core, so that a busy neighbour slows all of them alike."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Timing", "machine", "take_turns"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians over the rounds, in seconds; peak resident memory in bytes."""

    wall: float
    cpu: float
    peak_bytes: int


def take_turns(commands: Mapping[str, Sequence[str]], rounds: int = 5, output: str = os.devnull) -> dict[str, Timing]:
    """Run each command once unmeasured, then all of them in turn `rounds` times, each bound to the same core."""
    core = {min(os.sched_getaffinity(0))}
    # As an installation runs: with its byte code kept.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    taken: dict[str, list[tuple[float, float, int]]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            with Path(output).open("wb") as sink:
                began = time.perf_counter()
                child = subprocess.Popen(command, stdout=sink, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, core))
                _, status, usage = os.wait4(child.pid, 0)
            wall = time.perf_counter() - began
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode not in (0, 1):
                raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}")
            if number:
                taken[name].append((wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024))
    return {
        name: Timing(
            statistics.median(run[0] for run in runs), statistics.median(run[1] for run in runs), max(run[2] for run in runs)
        )
        for name, runs in taken.items()
    }


def machine() -> str:
    """One line for the foot of a table."""
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load {load:.1f} at the end"
