"""Localisation by real probe workers in eight network namespaces: verdicts and seconds for each kind of fault; healthy rounds.
Needs root. KINDS names some of the kinds, RUNS how often each strikes (20), ROUNDS the rounds of probes on healthy nodes (1,000).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import median

from tests.node.fabric import Fabric
from tests.node.fabric_faults import FAULTS, nobody, strike
from tests.node.namespaces import why_not

RUNS = int(os.environ.get("RUNS", "20"))
ROUNDS = int(os.environ.get("ROUNDS", "1000"))
HEALTHY = "healthy"
KINDS = os.environ.get("KINDS", " ".join([*FAULTS, HEALTHY])).split()


def struck(fabric: Fabric, kind: str) -> str:
    found = [strike(fabric, kind) for _ in range(RUNS)]
    wrong = [said for right, _, said in found if not right]
    return row(kind, f"{RUNS - len(wrong)} of {RUNS} right", [seconds for _, seconds, _ in found], wrong)


def healthy(fabric: Fabric) -> str:
    rounds, took, wrong = 0, [], []
    while rounds < ROUNDS:
        found, seconds = fabric.localize()
        rounds += len({result.probe.turn for result in found.results})
        took.append(seconds)
        if not nobody(found):
            wrong.append(found.summary)
    return row(HEALTHY, f"nobody blamed in {len(took) - len(wrong)} of {len(took)} ({rounds} rounds)", took, wrong)


def row(kind: str, outcome: str, seconds: list[float], wrong: list[str]) -> str:
    # Processors are shared with whatever else runs: the load belongs to the figure.
    return f"| {kind} | {outcome} | {median(seconds):.1f} | {max(seconds):.1f} | {os.getloadavg()[0]:.0f} | {'; '.join(wrong)} |"


def run() -> str:
    reason = why_not()
    if reason is not None:
        raise SystemExit(reason)
    rows = ["| fault | outcome | median s | longest s | load | wrong verdicts |", "|---|---|---:|---:|---:|---|"]
    with tempfile.TemporaryDirectory() as folder:
        fabric = Fabric(Path(folder))
        try:
            fabric.up()
            for kind in KINDS:
                rows.append(healthy(fabric) if kind == HEALTHY else struck(fabric, kind))
                print(rows[-1], flush=True)
        finally:
            fabric.down()
    return "# Probes on eight network namespaces\n\n" + "\n".join(rows)
