"""What Slurm's hooks cost: with Pitstop there, with it away, with it hanging; and a minute's worth of job ends."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from tests.service.service_process import ServiceProcess, free_port
from tests.slurm_hooks import Called, call, configuration, job_ends, stored_ends

REPEATS = 50
ENDS, SECONDS = 1000, 60.0
ENVIRONMENT = {"SLURM_JOB_ID": "42", "SLURM_CLUSTER_NAME": "lab", "SLURMD_NODENAME": "n1"}


def figures(calls: Sequence[Called]) -> str:
    seconds = sorted(item.seconds for item in calls)
    failed = sum(item.status != 0 for item in calls)
    return f"{median(seconds) * 1000:.0f} | {seconds[int(len(seconds) * 0.99)] * 1000:.0f} | {seconds[-1] * 1000:.0f} | {failed}"


def timed(what: str, name: str, settings: Path, repeats: int = REPEATS) -> str:
    return f"| {what} ({repeats} calls) | {figures([call(name, settings, ENVIRONMENT) for _ in range(repeats)])} |"


@contextmanager
def gone() -> Iterator[int]:
    """A port where no connection comes about, as on a host that is gone: its queue is full."""
    with ExitStack() as held:
        full = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        yield full.getsockname()[1]


def run() -> str:
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        away = configuration(folder, f"http://127.0.0.1:{free_port()}")
        rows += [timed(f"{name}, Pitstop away", name, away) for name in ("epilog", "healthcheck")]
        with gone() as port:
            lost = configuration(folder, f"http://127.0.0.1:{port}")
            rows += [timed(f"{name}, its host gone", name, lost) for name in ("epilog", "healthcheck")]
        with socket.create_server(("127.0.0.1", 0)) as silent:
            hanging = configuration(folder, f"http://127.0.0.1:{silent.getsockname()[1]}")
            rows += [
                timed("epilog, Pitstop hangs", "epilog", hanging),
                timed("healthcheck, Pitstop hangs", "healthcheck", hanging, 3),
            ]
        with ServiceProcess(folder / "data") as service:
            there = configuration(folder, service.url)
            rows += [timed(f"{name}, Pitstop there", name, there) for name in ("epilog", "healthcheck")]
            began = time.monotonic()
            calls = job_ends(ENDS, there, SECONDS)
            called = time.monotonic() - began
            taken = stored_ends(folder / "data" / "pitstop.sqlite", ENDS)
            seconds = time.monotonic() - began
            rows.append(f"| {ENDS} job ends within {SECONDS:.0f} s | {figures(calls)} |")
    head = "| what | median ms | 99th percentile ms | worst ms | exit status not 0 |\n|---|---|---|---|---|\n"
    return (
        head
        + "\n".join(rows)
        + f"\n\nOf {ENDS} job ends {taken} were stored, {seconds:.1f} s after the first call ({ENDS / seconds * 60:.0f} a "
        f"minute; the hooks returned within {called:.1f} s). {len(os.sched_getaffinity(0))} cores, "
        f"a load average of {os.getloadavg()[0]:.0f}.\n"
    )
