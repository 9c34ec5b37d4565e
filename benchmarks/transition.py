"""Transition time by the number of nodes: a rank is killed, all are restarted; nodes are network namespaces on this machine.

Beyond eight nodes the simulator goes on with what was measured and how it grew.
"""

from __future__ import annotations

import math
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, linear_regression, median

from benchmarks.simulation import one_large_task
from simulator.engine import simulate
from simulator.parameters import load_parameters
from simulator.policies import POLICIES
from tests.node.namespaces import Namespaces, why_not
from tests.node.peer import BARE_PYTHON, ROOT, Runs, wait_for
from tests.service.service_process import ServiceProcess

SCRIPT = ROOT / "tests" / "node" / "lockstep.py"
SIZES, KILLS, STEP_SECONDS = (2, 4, 6, 8), 3, 0.1
BEYOND = (16, 64, 256, 1024)
SEEDS = 3


def stepped(times: Path, generation: int) -> list[float]:
    rows = [line.split() for line in times.read_text().splitlines()] if times.exists() else []
    return [float(at) for number, _, at in rows if int(number) == generation]


def transitions(hosts: Namespaces, service: ServiceProcess, folder: Path, size: int) -> list[float]:
    """Seconds from each kill to the first step of the next generation, of a job on the first `size` nodes."""
    folder.mkdir()
    job, times, finish = f"on-{size}", folder / "times", folder / "finish"
    runs = Runs(folder, service.url, python=BARE_PYTHON)
    runs.environment |= {"STEP_TIMES": str(times), "PITSTOP_TOKEN_FILE": str(service.data_dir / "admin.token")}
    rendezvous = f"{hosts.address('n0')}:{7400 + size}"
    found = []
    try:
        for rank, node in enumerate(hosts.nodes[:size]):
            runs.start(
                SCRIPT, str(finish), str(STEP_SECONDS), ranks=1, job=job, node=node, flags=["--no-spare"],
                inside=["ip", "netns", "exec", hosts.namespace(node)],
                nnodes=size, node_rank=rank, rendezvous=rendezvous,
            )  # fmt: skip
        for generation in range(KILLS):
            wait_for(lambda number=generation: len(stepped(times, number)) > 20, 120, "twenty steps")  # type: ignore[misc]
            victim = hosts.nodes[generation % size]
            (pid,) = (item["process"]["pid"] for item in runs.state(job, victim)["placement"]["processes"])
            os.kill(pid, signal.SIGKILL)
            struck = time.time()
            wait_for(lambda number=generation: stepped(times, number + 1), 120, "the next generation")  # type: ignore[misc]
            found.append(stepped(times, generation + 1)[0] - struck)
        finish.touch()
        for process in runs.started:
            process.communicate(timeout=60)
    finally:
        runs.end()
    return found


def fit(measured: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """Seconds on one node and for each doubling: a line through the medians, as one slow round says nothing of the size."""
    growth, base = linear_regression([math.log2(size) for size in measured], [median(own) for own in measured.values()])
    return base, growth


def rows(measured: Mapping[int, Sequence[float]]) -> Iterator[str]:
    yield "| nodes | median, s | least to most, s |"
    yield "|---:|---:|---|"
    for size, seconds in measured.items():
        yield f"| {size} | {median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f} |"
    base, growth = fit(measured)
    yield ""
    yield f"A line through the medians: {base:.2f} s and {growth:+.2f} s for each doubling. The simulator with that, one task on"
    yield "every node, 30 days of faults at the rate of the recorded trace, three seeds:"
    yield ""
    yield "| nodes | transition, s | ETTR | ETTR if it stayed as on 8 nodes |"
    yield "|---:|---:|---:|---:|"
    for nodes in BEYOND:
        grown = base + growth * math.log2(nodes)
        shares = [kept(nodes, seconds) for seconds in (grown, median(measured[max(SIZES)]))]
        yield f"| {nodes:,} | {grown:.1f} | {shares[0]:.3%} | {shares[1]:.3%} |"


def kept(nodes: int, seconds: float) -> float:
    """ETTR of Pitstop with transitions of so many seconds."""
    parameters = load_parameters()
    policy = replace(POLICIES["pitstop"](parameters, nodes * 8), node_transition=seconds, restart=seconds)
    return fmean(simulate(one_large_task(parameters, seed, nodes), policy).ettr for seed in range(SEEDS))


def run() -> str:
    reason = why_not()
    if reason is not None:
        raise RuntimeError(reason)
    measured = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "service").mkdir()
        hosts = Namespaces(f"pt{os.getpid() % 100000}", "10.89.0", tuple(f"n{index}" for index in range(max(SIZES))))
        try:
            hosts.lay()
            with ServiceProcess(folder / "service", host=hosts.uplink()) as service:
                for size in SIZES:
                    measured[size] = transitions(hosts, service, folder / f"on-{size}", size)
        finally:
            hosts.clear()
    note = (
        "A job with one rank a node, each node a network namespace with an agent of its own (`pitstop run --no-spare --nnodes N`)"
        "; the service is outside. Seconds from `kill -9` of one rank to the first step that all ranks of the next generation"
        " end: noticed, reported, diagnosed, decided, all ranks ended and started. The script has no torch: what is measured is"
        f" Pitstop, not the loading of a model. {KILLS} kills a size, all nodes share two cores."
    )
    return "# Transition time by nodes\n\n" + note + "\n\n" + "\n".join(rows(measured))
