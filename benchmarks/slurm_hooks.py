"""What Slurm's hooks cost: with Pitstop there, with it away, with it hanging; and a minute's worth of job ends."""

from __future__ import annotations

import os
import socket
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.service.service_process import ServiceProcess, free_port
from tests.slurm_hooks import Called, call, configuration, job_ends

REPEATS = 20
ENDS, AT_ONCE = 1000, 4
ENVIRONMENT = {"SLURM_JOB_ID": "42", "SLURM_CLUSTER_NAME": "lab", "SLURMD_NODENAME": "n1"}


def figures(calls: Sequence[Called]) -> str:
    seconds = sorted(item.seconds for item in calls)
    failed = sum(item.status != 0 for item in calls)
    return f"{median(seconds) * 1000:.0f} | {seconds[int(len(seconds) * 0.99)] * 1000:.0f} | {seconds[-1] * 1000:.0f} | {failed}"


def stored(data: Path) -> int:
    with sqlite3.connect(f"file:{data / 'pitstop.sqlite'}?mode=ro", uri=True) as database:
        return int(database.execute("select count(*) from slurm_words").fetchone()[0])


def run() -> str:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        away = configuration(folder, f"http://127.0.0.1:{free_port()}")
        calls = [call("epilog", away, ENVIRONMENT) for _ in range(REPEATS)]
        rows.append(f"| epilog, Pitstop away ({REPEATS} calls) | {figures(calls)} |")
        with socket.create_server(("127.0.0.1", 0)) as silent:
            hanging = configuration(folder, f"http://127.0.0.1:{silent.getsockname()[1]}")
            rows.append(
                f"| epilog, Pitstop hangs (3 calls) | {figures([call('epilog', hanging, ENVIRONMENT) for _ in range(3)])} |"
            )
        with ServiceProcess(folder / "data") as service:
            there = configuration(folder, service.url)
            calls = [call("epilog", there, ENVIRONMENT) for _ in range(REPEATS)]
            rows.append(f"| epilog, Pitstop there ({REPEATS} calls) | {figures(calls)} |")
            before, began = stored(folder / "data"), time.monotonic()
            calls = job_ends(ENDS, there, AT_ONCE)
            seconds = time.monotonic() - began
            rows.append(f"| {ENDS} job ends, {AT_ONCE} hooks at once | {figures(calls)} |")
            taken = stored(folder / "data") - before
    head = "| what | median ms | 99th percentile ms | worst ms | exit status not 0 |\n|---|---|---|---|---|\n"
    return (
        head
        + "\n".join(rows)
        + f"\n\nOf {ENDS} job ends {taken} were stored, in {seconds:.1f} s ({ENDS / seconds * 60:.0f} a minute) "
        f"at a load average of {os.getloadavg()[0]:.0f}.\n"
    )
