"""The simulator against real runs under chaos: fitted on half of them, its lost time against what the ranks of the others noted.

Each run is a small GPT on two ranks under `pitstop run` and its service. At random steps one rank is killed, and one is stopped.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from simulator.engine import Setting, simulate
from simulator.faults import Fault, FaultKind
from simulator.policies import Policy, Reach
from simulator.workloads import Workload
from tests.node.peer import ROOT, Runs
from tests.service.service_process import ServiceProcess

SCRIPT = ROOT / "tests" / "chaos" / "gpt.py"
RANKS, RUNS, SEED = 2, 6, 13
KINDS = {"kill": FaultKind.PROCESS, "stop": FaultKind.HANG}


@dataclass(frozen=True, slots=True)
class Stroke:
    """A fault in a real run: when the last step before it ended (seconds from the first step), and until the work that was done
    before it was done again and passed by one step: what it cost."""

    kind: FaultKind
    at: float
    lost: float
    detection: float


@dataclass(frozen=True, slots=True)
class Run:
    seconds: float
    strokes: tuple[Stroke, ...]

    @property
    def lost(self) -> float:
        return sum(stroke.lost for stroke in self.strokes)


def drawn(chance: random.Random) -> tuple[str, list[str], int]:
    """FAULTS for one stroke of each kind, one a generation, the kinds in their order, and the steps to train for."""
    first = chance.randint(60, 160)
    second = first + chance.randint(60, 160)
    kinds = chance.sample(list(KINDS), 2)
    ranks = [chance.randrange(RANKS) for _ in range(2)]
    # `twice` strikes in the second generation too: in the first one its step is not reached.
    return f"{ranks[0]}@{first}:{kinds[0]} twice:{ranks[1]}@{second}:{kinds[1]}", kinds, second + 60


def real(folder: Path, chance: random.Random, service: ServiceProcess, job: str) -> Run:
    folder.mkdir()
    faults, kinds, steps = drawn(chance)
    runs = Runs(folder, service.url, python=sys.executable)
    runs.environment |= {"FAULTS": faults, "STEP_TIMES": str(folder / "times")}
    try:
        arguments = [str(folder / "model.pt"), str(steps), str(folder / "result")]
        process = runs.start(SCRIPT, *arguments, ranks=RANKS, job=job, flags=["--no-spare"])
        _, said = process.communicate(timeout=200)
        assert process.returncode == 0, said
    finally:
        runs.end()
    losses = sorted(service.get(f"/api/v1/jobs/{job}/account")["losses"], key=lambda loss: loss["generation"])
    rows = [(int(generation), int(step), float(at)) for generation, step, at in map(str.split, noted(folder))]
    begun, healthy = rows[0][2], median(after[2] - before[2] for before, after in pairwise(rows) if after[0] == before[0])
    strokes = []
    for generation, (kind, loss) in enumerate(zip(kinds, losses, strict=True)):
        before = [row for row in rows if row[0] == generation][-1]
        past = next(row for row in rows if row[0] > generation and row[1] > before[1])
        noticed = sum(loss["seconds"].get(phase, 0.0) for phase in ("detection", "diagnosis", "decision"))
        strokes.append(Stroke(KINDS[kind], before[2] - begun, past[2] - before[2] - healthy, noticed))
    return Run(rows[-1][2] - begun, tuple(strokes))


def noted(folder: Path) -> list[str]:
    return (folder / "times").read_text().splitlines()


def fitted(strokes: Sequence[Stroke]) -> Policy:
    """Detection by kind as the service's accounts have it, and from there to work as the ranks noted it."""
    of = {kind: [stroke for stroke in strokes if stroke.kind is kind] for kind in KINDS.values()}
    detection = {kind: fmean(stroke.detection for stroke in own) for kind, own in of.items()}
    restart = fmean(stroke.lost - stroke.detection for stroke in strokes)
    return Policy("fitted", Reach.WAIT, detection, restart, restart)


def simulated(run: Run, policy: Policy) -> float:
    """Seconds that the simulator says `run` lost, of faults at its moments."""
    faults = tuple(Fault(stroke.at, 0, stroke.kind) for stroke in run.strokes)
    story = simulate(Setting(1, (Workload("job", (0.0, 1.0), 1.0, 1.0),), faults, run.seconds), policy)
    return story.lost["detection"] + story.lost["transition"]


def rows(runs: Sequence[Run]) -> Iterator[str]:
    half = runs[: len(runs) // 2]
    policy = fitted([stroke for run in half for stroke in run.strokes])
    yield (
        f"Fitted on {len(half)} runs: a kill is noticed and decided in {policy.detection[FaultKind.PROCESS]:.2f} s, a hang in "
        f"{policy.detection[FaultKind.HANG]:.2f} s, then {policy.restart:.2f} s to the first new step.\n"
    )
    yield "| run | half | faults | seconds | lost, s | simulated, s | off by |"
    yield "|---:|---|---|---:|---:|---:|---:|"
    for number, run in enumerate(runs):
        name, said = "fitted" if number < len(half) else "held out", simulated(run, policy)
        kinds = ", ".join(stroke.kind for stroke in run.strokes)
        yield (
            f"| {number + 1} | {name} | {kinds} | {run.seconds:.1f} | {run.lost:.2f} | {said:.2f} | {said / run.lost - 1:+.1%} |"
        )
    held = runs[len(half) :]
    lost, said = sum(run.lost for run in held), sum(simulated(run, policy) for run in held)
    yield f"| all | held out | | {sum(run.seconds for run in held):.1f} | {lost:.2f} | {said:.2f} | {said / lost - 1:+.1%} |"


def run() -> str:
    chance = random.Random(SEED)
    runs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "service").mkdir()
        with ServiceProcess(folder / "service") as service:
            for number in range(RUNS):
                runs.append(real(folder / f"run-{number}", chance, service, f"run-{number}"))
    note = (
        "Real runs of a small GPT on two ranks under `pitstop run --no-spare` and its service, two faults each, at random steps:"
        " a rank is killed (`process`), and one stopped (`hang`). Lost: from the last step before a fault to the first new one,"
        " less that step, as the ranks noted it."
    )
    return "# The simulator against real chaos\n\n" + note + " " + "\n".join(rows(runs))
