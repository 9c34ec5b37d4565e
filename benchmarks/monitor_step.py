"""What `with monitor.step(i):` costs a training loop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pitstop import layout
from pitstop.monitor import Monitor

STEPS, REPEATS = 200, 2000


def cost(loop: Callable[[int], None]) -> list[float]:
    """Microseconds a turn, of many short runs: what interrupts one of them spoils only that one."""
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        loop(STEPS)
        found.append((time.perf_counter() - began) / STEPS * 1e6)
    return sorted(found)


def run() -> str:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / "monitor"
        layout.create(str(path), 0, 0)
        monitor = Monitor(str(path))

        def bare(count: int) -> None:
            for _ in range(count):
                pass

        def step(count: int) -> None:
            for number in range(count):
                with monitor.step(number):
                    pass

        def data(count: int) -> None:
            for _ in range(count):
                with monitor.data():
                    pass

        def report(count: int) -> None:
            for _ in range(count):
                monitor.report(loss=1.5, grad_norm=0.5)

        rows = {"an empty loop": bare, "monitor.step": step, "a section": data, "monitor.report, two values": report}
        lines = ["| what | best, us | median, us | 99th percentile, us |", "|---|---:|---:|---:|"]
        for name, loop in rows.items():
            found = cost(loop)
            lines.append(f"| {name} | {found[0]:.2f} | {median(found):.2f} | {found[int(0.99 * len(found))]:.2f} |")
    return "# The monitor in the training loop\n\nRequired: `monitor.step` under 3 us.\n\n" + "\n".join(lines)
