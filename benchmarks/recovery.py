"""How long a killed rank costs: from the last finished step to the next one, beside torchrun, on the same training."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.node.peer import ROOT, Runs
from tests.service.service_process import ServiceProcess

SCRIPT = ROOT / "tests" / "chaos" / "gpt.py"
RANKS, STEPS, REPEATS = 2, 150, 3
# Late enough for the spare to be warm, as in any run of more than a minute.
STRUCK = 140
FAULT = f"1@{STRUCK}:kill"


def gap(times: Path) -> tuple[float, int]:
    """(seconds without a finished step, steps that were done again)"""
    rows = [(int(generation), int(step), float(at)) for generation, step, at in map(str.split, times.read_text().splitlines())]
    before = [row for row in rows if row[0] == 0]
    after = [row for row in rows if row[0] > 0]
    return after[0][2] - before[-1][2], before[-1][1] + 1 - after[0][1]


def by_torchrun(folder: Path) -> tuple[float, int]:
    environment = os.environ | {"FAULTS": FAULT, "STEP_TIMES": str(folder / "times"), "PYTHONPATH": str(ROOT / "sdk")}
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(RANKS),
        "--max-restarts",
        "3",
    ]
    script = [str(SCRIPT), str(folder / "model.pt"), str(STEPS), str(folder / "result")]
    subprocess.run([*launcher, *script], env=environment, cwd=folder, check=True, capture_output=True, timeout=600)
    return gap(folder / "times")


def by_pitstop(folder: Path, service: str, *options: str) -> tuple[float, int]:
    runs = Runs(folder, service, python=sys.executable)
    runs.environment |= {"FAULTS": FAULT, "STEP_TIMES": str(folder / "times")}
    try:
        arguments = (str(folder / "model.pt"), str(STEPS), str(folder / "result"))
        process = runs.start(SCRIPT, *arguments, ranks=RANKS, job=f"job{folder.name}", flags=options)
        _, said = process.communicate(timeout=600)
        assert process.returncode == 0, said
        return gap(folder / "times")
    finally:
        runs.end()


def run() -> str:
    found: dict[str, list[tuple[float, int]]] = {"torchrun --max-restarts 3": [], "pitstop run --no-spare": [], "pitstop run": []}
    with tempfile.TemporaryDirectory() as name, ServiceProcess(Path(name) / "service") as service:
        for repeat in range(REPEATS):
            for who, gaps in found.items():
                folder = Path(name) / f"{repeat}-{len(who)}"
                folder.mkdir()
                if who.startswith("torchrun"):
                    gaps.append(by_torchrun(folder))
                else:
                    gaps.append(by_pitstop(folder, service.url, *(["--no-spare"] if "no-spare" in who else [])))
    base = median(seconds for seconds, _ in found["torchrun --max-restarts 3"])
    lines = ["| launcher | median, s | worst, s | times as fast | steps done again |", "|---|---:|---:|---:|---:|"]
    for who, gaps in found.items():
        seconds = [item[0] for item in gaps]
        again = max(item[1] for item in gaps)
        lines.append(f"| {who} | {median(seconds):.2f} | {max(seconds):.2f} | {base / median(seconds):.1f} | {again} |")
    note = (
        f"Rank 1 of {RANKS} is killed with signal 9 in step {STRUCK} of a small GPT; from the last finished step to the next"
        " finished one. Pitstop asks its service, which diagnoses and decides, before it restarts the ranks."
        f" Load average of the machine at the end: {os.getloadavg()[0]:.1f}."
    )
    return "# Recovery\n\n" + note + "\n\n" + "\n".join(lines)
