"""The agent beside talkative ranks: processor, memory, and whether every line arrives."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

from detectors.processes import identify, scheduling
from tests.node.peer import Peer, Runs, wait_for

RANKS, LINES_A_SECOND, SECONDS = 8, 1000, 20

TALK = """
import sys, time
rate, seconds = int(sys.argv[1]), float(sys.argv[2])
began, written = time.monotonic(), 0
while (spent := time.monotonic() - began) < seconds:
    due = int(spent * rate) - written
    for _ in range(due):
        written += 1
        sys.stdout.write(f"2026-01-31 12:00:00,123 iteration {written:8d} | lm loss: {10 / written:.6E} | grad norm: 0.713\\n")
    sys.stdout.flush()
    time.sleep(0.02)
"""

FLOOD = """
import sys
for number in range(int(sys.argv[1])):
    sys.stdout.write(f"[{1000 + number / 1000:.6f}] NVRM: Xid (PCI:0000:b3:00): 79, pid=1234, GPU has fallen off the bus.\\n")
"""


def memory(pid: int) -> float:
    """Resident MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def measured(runs: Runs, peer: Peer, script: str, *arguments: str, ranks: int) -> tuple[float, float, float, int]:
    """(share of one core, resident MB of agent and keeper, seconds, lines that arrived)"""
    path = runs.folder / "talk.py"
    path.write_text(script)
    process = runs.start(path, *arguments, ranks=ranks)
    # Whoever looks at the terminal reads it.
    assert process.stdout is not None
    threading.Thread(target=deque, args=(process.stdout, 0), daemon=True).start()
    wait_for(lambda: peer.lines() or process.poll() is not None, 60)
    agent = identify(process.pid)
    assert agent is not None
    first, began = scheduling(agent), time.monotonic()
    last, resident = first, 0.0
    while (now := scheduling(agent)) is not None and now.state != "Z":
        last = now
        keeper = runs.state()["placement"]["keeper"]
        # Both may end while they are looked at.
        with contextlib.suppress(OSError, TypeError, IndexError):
            resident = max(resident, memory(agent.pid) + memory(keeper["pid"]))
        if process.poll() is not None or runs.state()["care"]["phase"] == "ended":
            break
        time.sleep(0.2)
    spent = time.monotonic() - began
    process.wait(60)
    assert first is not None and last is not None
    return (last.cpu_seconds - first.cpu_seconds) / spent, resident, spent, len(peer.lines())


def run() -> str:
    lines = ["| what | agent, share of one core | agent and keeper, MB | lines that arrived |", "|---|---:|---:|---:|"]
    peer = Peer()
    peer.up()
    for name, script, arguments, ranks in (
        (f"{RANKS} ranks, {LINES_A_SECOND} lines a second each", TALK, (str(LINES_A_SECOND), str(SECONDS)), RANKS),
        ("800,000 equal Xid lines at once", FLOOD, ("800000",), 1),
    ):
        peer.batches.clear()
        with tempfile.TemporaryDirectory() as folder:
            runs = Runs(Path(folder), f"http://127.0.0.1:{peer.port}")
            try:
                share, resident, spent, arrived = measured(runs, peer, script, *arguments, ranks=ranks)
            finally:
                runs.end()
        lines.append(f"| {name} ({spent:.0f} s) | {share:.1%} | {resident:.0f} | {arrived} |")
    peer.down()
    return "# The agent's load\n\nRequired: under 5 % of one core, under 150 MB.\n\n" + "\n".join(lines)
