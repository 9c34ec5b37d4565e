"""Processes of this machine, each in a session of its own; other drivers put a command of theirs in front."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluation.drivers import Ended

__all__ = ["LocalDriver", "die_with_parent"]

GRACE_SECONDS = 10.0
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """In the child: SIGTERM when its parent is gone, so that the next coordinator finds the slots free (prctl(2))."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(slots=True)
class Running:
    process: subprocess.Popen[bytes]
    node: str
    kill_at: float | None = None


class LocalDriver:
    """Implements Driver. `monotonic`: seconds; after the grace a stopped process group gets SIGKILL."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self.running: dict[str, Running] = {}

    def prefix(self, node: str) -> Sequence[str]:
        """Words that bring a command to `node`."""
        return ()

    def is_lost(self, status: int) -> bool:
        """Whether an exit status means that it was killed from outside (the kernel, a lost node) and did not end by itself."""
        return status == -signal.SIGKILL

    def trouble_of(self, node: str) -> str | None:
        """Why `node` can take no more processes, as far as anybody knows; asked where one of its processes failed."""
        return None

    def start(self, key: str, command: Sequence[str], node: str, environment: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*self.prefix(node), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.running[key] = Running(process, node)

    def ended(self) -> list[Ended]:
        now = self.monotonic()
        found: list[Ended] = []
        for key, running in list(self.running.items()):
            status = running.process.poll()
            if status is not None:
                # What it left behind in its group must not go on writing.
                self.signal(running, signal.SIGKILL)
                del self.running[key]
                found.append(Ended(key, status, self.is_lost(status), self.trouble_of(running.node) if status else None))
            elif running.kill_at is not None and now >= running.kill_at:
                self.signal(running, signal.SIGKILL)
        return found

    def stop(self, key: str) -> None:
        running = self.running.get(key)
        if running is not None and running.kill_at is None:
            running.kill_at = self.monotonic() + GRACE_SECONDS
            self.signal(running, signal.SIGTERM)

    def signal(self, running: Running, number: signal.Signals) -> None:
        try:
            os.killpg(running.process.pid, number)
        except ProcessLookupError:
            return

    def close(self) -> None:
        for running in self.running.values():
            self.signal(running, signal.SIGTERM)
        deadline = self.monotonic() + GRACE_SECONDS
        for running in self.running.values():
            try:
                running.process.wait(max(0.0, deadline - self.monotonic()))
            except subprocess.TimeoutExpired:
                self.signal(running, signal.SIGKILL)
                running.process.wait()
        self.running.clear()
