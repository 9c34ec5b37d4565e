"""Fault injection, scripted by (rank, step): `FAULTS="1@20:kill 0@5:slow=1.5"` in the environment of a training script.

A script calls `faults.at(step)` in each step and `faults.loss(step, loss)` for what it reports. A fault strikes in generation 0
only, so that a restarted job can heal; `always:` before a fault makes it strike in every generation, `twice:` in the next one
too. FAULTS_STRUCK names a file that gets the time (seconds since the epoch) of the strike.

    kill       SIGKILL                      segfault   SIGSEGV
    raise      an exception                 exit=N     exit code N
    raise_slowly    an exception whose process takes a minute to end, as the teardown of a large one does
    stop       SIGSTOP                      spin       an endless loop that never gives the interpreter lock up
    hang       an endless sleep             slow=F     every step from here takes F times as long
    nan        the loss is NaN from here    spike=F    the loss is F times as high from here
    mute       the loss is no longer reported         full_disk  a real "No space left on device"
    corrupt    the checkpoint in FAULTS_CHECKPOINT is cut in half, and the rank is killed
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Fault", "Faults", "parse_faults"]

# What a rank reports, not what it does.
NUMBERS = frozenset(("nan", "spike", "mute"))


@dataclass(frozen=True)
class Fault:
    rank: int
    step: int
    kind: str
    value: float = 0.0
    always: bool = False
    twice: bool = False

    def strikes_in(self, generation: int) -> bool:
        return self.always or generation == 0 or (self.twice and generation == 1)


def parse_faults(text: str) -> list[Fault]:
    faults = []
    for word in text.split():
        always, twice = word.startswith("always:"), word.startswith("twice:")
        place, _, what = word.removeprefix("always:").removeprefix("twice:").partition(":")
        rank, _, step = place.partition("@")
        kind, _, value = what.partition("=")
        faults.append(Fault(int(rank), int(step), kind, float(value or 0), always, twice))
    return faults


class Faults:
    """Those of this rank."""

    def __init__(self) -> None:
        rank, generation = int(os.environ.get("RANK", "0")), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        planned = parse_faults(os.environ.get("FAULTS", ""))
        self._faults = [fault for fault in planned if fault.rank == rank and fault.strikes_in(generation)]
        self._began = time.monotonic()

    def at(self, step: int) -> None:
        """Inside a step, after its own work and before waiting for the others."""
        spent = time.monotonic() - self._began
        for fault in self._faults:
            if fault.kind == "slow" and step >= fault.step:
                note_strike(step == fault.step)
                time.sleep(spent * (fault.value - 1))
            elif fault.step == step:
                strike(fault)

    def begin(self) -> None:
        """At the beginning of a step: what slow faults stretch."""
        self._began = time.monotonic()

    def loss(self, step: int, loss: float) -> float | None:
        """What to report in place of `loss`; None for nothing."""
        for fault in self._faults:
            if step >= fault.step:
                note_strike(step == fault.step and fault.kind in NUMBERS)
                if fault.kind == "nan":
                    return math.nan
                if fault.kind == "spike":
                    return loss * fault.value
                if fault.kind == "mute":
                    return None
        return loss


def note_strike(now: bool) -> None:
    if now and os.environ.get("FAULTS_STRUCK"):
        Path(os.environ["FAULTS_STRUCK"]).write_text(repr(time.time()))


def strike(fault: Fault) -> None:
    note_strike(True)
    deadly = {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV, "stop": signal.SIGSTOP}
    if fault.kind in deadly:
        sys.stdout.flush()
        os.kill(os.getpid(), deadly[fault.kind])
    elif fault.kind.startswith("raise"):
        if fault.kind == "raise_slowly":
            threading.Thread(target=time.sleep, args=(60.0,)).start()
        raise ValueError(f"injected at step {fault.step}")
    elif fault.kind == "exit":
        sys.exit(int(fault.value))
    elif fault.kind == "full_disk":
        with Path("/dev/full").open("wb", buffering=0) as device:
            device.write(b"x")
    elif fault.kind == "corrupt":
        checkpoint = Path(os.environ["FAULTS_CHECKPOINT"])
        os.truncate(checkpoint, checkpoint.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind == "spin":
        all(itertools.repeat(True))
    elif fault.kind == "hang":
        time.sleep(1e6)
