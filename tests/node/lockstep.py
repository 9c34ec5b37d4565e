"""A training loop in miniature, without torch: ranks that wait for one another after each step, as an all-reduce makes them.

python lockstep.py FINISH_FLAG STEP_SECONDS      (FAULTS in the environment)

STEP_TIMES names a file that gets generation, step and time (seconds since the epoch) of every finished step. SLOW_FROM names a
step from which on steps last two and a half times as long, so that an agent sees each of them.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from pathlib import Path

import pitstop

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.faults import Faults


class Barrier:
    """All ranks of a generation, through a shared file: a step number a rank, and the step after which all of them end."""

    def __init__(self, path: str, rank: int, ranks: int) -> None:
        with Path(path).open("a+b") as file:
            file.truncate(8 * (ranks + 1))
            self._cells = memoryview(mmap.mmap(file.fileno(), 8 * (ranks + 1))).cast("q")
        self._rank, self._ranks = rank, ranks

    def wait(self, step: int) -> None:
        self._cells[self._rank] = step + 1
        while min(self._cells[: self._ranks]) <= step:
            time.sleep(0.002)

    def goes_on(self, step: int, finish: bool) -> bool:
        """Rank 0 decides, one step ahead, so that every rank ends after the same step."""
        if self._rank == 0 and finish and not self._cells[self._ranks]:
            self._cells[self._ranks] = step + 1
        last = self._cells[self._ranks]
        return not last or step <= last


def main() -> None:
    finish, step_seconds = Path(sys.argv[1]), float(sys.argv[2])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    generation = os.environ["TORCHELASTIC_RESTART_COUNT"]
    monitor, faults = pitstop.init(), Faults()
    barrier = Barrier(f"{finish}.{generation}", rank, ranks)
    print("generation", generation, flush=True)
    times = os.environ.get("STEP_TIMES", "") if rank == 0 else ""
    slow_from = int(os.environ.get("SLOW_FROM", 1 << 60))
    step = 0
    while barrier.goes_on(step, finish.exists()):
        with monitor.step(step):
            faults.begin()
            time.sleep(step_seconds * (2.5 if step >= slow_from else 1))
            faults.at(step)
            with monitor.sync():
                barrier.wait(step)
        if times:
            with Path(times).open("a") as target:
                target.write(f"{generation} {step} {time.time()}\n")
        loss = faults.loss(step, 10 * (step + 10) ** -0.3)
        if loss is not None:
            monitor.report(loss=loss)
        step += 1


main()
