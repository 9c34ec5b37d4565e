"""How soon the agent notices what goes wrong with a rank, and whether it names the right one."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from tests.node.peer import Peer, Runs, wait_for

SCRIPT = Path(__file__).parents[1] / "tests" / "node" / "lockstep.py"
RANKS, VICTIM, STEP, STEP_SECONDS, REPEATS = 3, 1, 15, 0.1, 5
LIMITS = {"kill": "0.2", "raise": "0.1", "stop": "3 x mean + 0.5", "spin": "3 x mean + 0.5"}


def strike_time(runs: Runs) -> float:
    """When the fault struck: the script wrote it down just before (CLOCK_REALTIME)."""
    return float((runs.folder / "struck").read_text())


def once(kind: str) -> tuple[float, bool]:
    """(seconds from the fault to the agent's word on it, whether that names the right rank)"""
    peer = Peer()
    peer.up()
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), f"http://127.0.0.1:{peer.port}")
        runs.environment |= {"FAULTS": f"{VICTIM}@{STEP}:{kind}", "FAULTS_STRUCK": str(runs.folder / "struck")}
        heard: list[tuple[float, str]] = []
        process = runs.start(SCRIPT, str(runs.folder / "finish"), str(STEP_SECONDS), ranks=RANKS)

        def listen() -> None:
            assert process.stderr is not None
            heard.extend((time.time(), line) for line in process.stderr)

        threading.Thread(target=listen, daemon=True).start()
        try:
            word = re.compile(r"pitstop: (hang: )?rank \d+")
            told = wait_for(lambda: next(((at, line) for at, line in list(heard) if word.search(line)), None), 60)
            return told[0] - strike_time(runs), f"rank {VICTIM}" in told[1]
        finally:
            runs.end()
            peer.down()


def run() -> str:
    lines = [
        f"| fault in rank {VICTIM} of {RANKS} | median, s | worst, s | required, s | right rank |",
        "|---|---:|---:|---:|---:|",
    ]
    for kind, limit in LIMITS.items():
        found = [once(kind) for _ in range(REPEATS)]
        seconds = [spent for spent, _ in found]
        right = sum(named for _, named in found)
        lines.append(f"| {kind} | {median(seconds):.3f} | {max(seconds):.3f} | {limit} | {right} of {REPEATS} |")
    note = f"Steps of {STEP_SECONDS} s; from the moment before the fault to the agent's line on its standard error."
    return "# Noticing\n\n" + note + "\n\n" + "\n".join(lines)
