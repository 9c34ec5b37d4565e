"""Pipeline plans on real processes: how near their periods are to what is planned, and what one failure of twelve costs.

Operations last a set time (they sleep), so that twelve workers fit two cores: messages, order and changes are real, kernels
are not.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from cli.stories.observing import processes_of
from cli.stories.stage import open_stage
from pitstop.pipeline import Membership, PipelinePlan, publish, regrouped
from recovery.planning.pipeline.bounds import one_f_one_b
from recovery.planning.pipeline.model import Mode, Problem, Worker
from recovery.planning.pipeline.plan_set import compute_plan_set, save_plan_set
from recovery.planning.pipeline.planner import plan
from recovery.planning.pipeline.specification import Specification, answer, document_of
from tests.node.peer import ROOT
from tests.sdk.pipeline_job import Job, Reference

REPLICAS, STAGES, MICROBATCHES = 3, 4, 6
TOTAL = REPLICAS * MICROBATCHES
UNIT = float(os.environ.get("PIPELINE_UNIT", "0.08"))
ITERATIONS = 5
# Healthy iterations before a worker is killed, and how long is counted from then on.
HEALTHY, WINDOW = 3, UNIT * 500
SHAPE = (STAGES, TOTAL)
LOST = (1, 2)


def document(problem: Problem) -> dict[str, Any]:
    found = plan(problem)
    return answer(Specification(problem), found, found)


def members(problem: Problem) -> dict[str, Worker]:
    return {
        f"w{replica}{stage}": (replica, stage) for replica in range(problem.replicas) for stage in range(problem.stages)
        if (replica, stage) not in problem.failed
    }  # fmt: skip


def ended(found: Mapping[str, Any]) -> list[float]:
    """When the last worker ended each iteration."""
    return [max(record["ends"][index] for record in found.values()) for index in sorted(next(iter(found.values()))["ends"])]


def periods() -> Iterator[str]:
    import torch

    yield "| 3 x 4 x 6 | planned, units | measured, units | off by | activations held | gradients off by | parameters off by |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    reference = Reference(*SHAPE)
    reference.run(ITERATIONS)
    for mode, failed, cap in (
        (Mode.COUPLED, (), 4),
        (Mode.DECOUPLED, (), 6),
        (Mode.DECOUPLED, (LOST,), 6),
        (Mode.STAGGERED, (LOST,), 6),
        (Mode.STAGGERED, ((1, 1), (2, 3)), 8),
    ):
        problem = Problem(REPLICAS, STAGES, MICROBATCHES, mode=mode, activation_cap=cap, failed=frozenset(failed))
        told = document(problem)
        with tempfile.TemporaryDirectory() as folder:
            job = Job(Path(folder), SHAPE, ITERATIONS, seconds=UNIT)
            try:
                publish(job.store, 1, told, members(problem))
                job.start(*members(problem))
                found = job.wait()
            finally:
                job.stop()
        lasted = median(later - before for before, later in itertools.pairwise(ended(found))) / UNIT
        peak = max(max(record["peaks"].values()) for record in found.values())
        gradients = parameters = 0.0
        for record in found.values():
            whole = list(reference.modules[record["worker"][1]].parameters())
            for ours, gradient, theirs in zip(record["parameters"], record["gradients"], whole, strict=True):
                assert theirs.grad is not None
                parameters = max(parameters, float((ours - theirs.detach()).abs().max()))
                gradients = max(gradients, float((gradient - theirs.grad).abs().max() / theirs.grad.abs().max()))
        assert torch.isfinite(torch.tensor([gradients, parameters])).all()
        yield (
            f"| {mode}, failed {list(failed) or 'none'} | {told['period']} | {lasted:.2f} | {lasted / told['period'] - 1:+.1%} | "
            f"{peak} of {cap} | {gradients:.0e} | {parameters:.0e} |"
        )


def in_place(problem: Problem, leaving: Collection[str] = ()) -> tuple[float, Sequence[float]]:
    """Kill one of twelve and go on by `problem` without `leaving` either: when it died, and when iterations ended. Plans are
    computed ahead."""
    healthy = Problem(REPLICAS, STAGES, MICROBATCHES, activation_cap=6)
    victim = "w{}{}".format(*LOST)
    told, before = document(problem), document(healthy)
    iterations = HEALTHY + int(WINDOW / (told["period"] * UNIT)) + 1
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), SHAPE, iterations, seconds=UNIT, hangs=[(victim, HEALTHY)])
        try:
            publish(job.store, 1, before, members(healthy))
            job.start(*members(healthy))
            job.store.wait([f"hangs/{victim}"])
            died = time.monotonic()
            job.kill(victim)
            for member in leaving:
                job.kill(member)
            present = Membership(1, PipelinePlan.from_document(before), members(healthy), {})
            found = regrouped(present, told, lost={victim, *leaving})
            publish(job.store, found.generation, told, found.workers, found.sources)
            return died, ended(job.wait())
        finally:
            job.stop()


def by_pitstop(healthy: Problem) -> tuple[float, Sequence[float]]:
    """Under `pitstop run` and a service: the recovery decides, the others go on, and the lost rank is taken back."""
    with tempfile.TemporaryDirectory() as name, open_stage(Path(name) / "stage") as stage:
        save_plan_set(compute_plan_set(healthy, 3), stage.folder / "plans")
        stage.serve()
        schedule = document_of(healthy) | {"unit_seconds": UNIT, "regroup_seconds": 5.0}
        stage.post("/api/v1/jobs", job="bench", ranks=REPLICAS * STAGES, layout={"pipeline_schedule": schedule})
        command = [sys.executable, str(ROOT / "tests/sdk/pipeline_rank.py"), str(stage.folder), str(UNIT), "1000"]
        stage.start("bench", "run", "--job", "bench", "--ranks", str(REPLICAS * STAGES), "--no-spare", "--", *command)

        def iterations() -> list[float]:
            """When the last rank ended each, as far as all but one have."""
            ends: dict[int, dict[int, float]] = {}
            for rank in range(REPLICAS * STAGES):
                path = stage.folder / f"times-{rank}.txt"
                for line in path.read_text().splitlines() if path.exists() else ():
                    index, end = line.split()
                    ends.setdefault(int(index), {})[rank] = float(end)
            return sorted(max(told.values()) for told in ends.values() if len(told) >= REPLICAS * STAGES - 1)

        stage.wait_for("healthy iterations", lambda: len(iterations()) >= HEALTHY, 180)
        processes = processes_of(stage, "bench")
        died = time.monotonic()
        os.kill(processes[LOST[0] * STAGES + LOST[1]], signal.SIGKILL)
        time.sleep(WINDOW)
        return died, iterations()


def by_torchrun(healthy: Problem, smaller: Problem) -> tuple[float, Sequence[float]]:
    """One agent of torchrun a replica; that of the lost worker is killed, the others start their workers again without it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for problem in (healthy, smaller):
            (folder / f"plan-{problem.replicas * STAGES}.json").write_text(json.dumps(document(problem)))
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "OMP_NUM_THREADS": "1"}
        port = 29_400 + os.getpid() % 500
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2:3", "--nproc-per-node", str(STAGES)]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "bench", "--max-restarts", "3"]
        command += ["--rdzv-conf", "last_call_timeout=1,is_host={}", str(ROOT / "tests/sdk/pipeline_rank.py")]
        command += [name, str(UNIT), "1000"]
        agents: list[subprocess.Popen[bytes]] = []
        try:
            for index in range(REPLICAS):
                own = [part.format(int(index == 0)) for part in command]
                agents.append(
                    subprocess.Popen(
                        own, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
                    )
                )
            times = [folder / f"times-{rank}.txt" for rank in range(REPLICAS * STAGES)]

            def iterations(ranks: int) -> list[float]:
                """When the last of `ranks` ended each iteration."""
                rows = [[line.split() for line in path.read_text().splitlines()] for path in times[:ranks] if path.exists()]
                ends = [[float(at) for size, at in own if int(size) == ranks] for own in rows]
                return [max(together) for together in zip(*ends, strict=False)] if len(ends) == ranks else []

            deadline = time.monotonic() + 120
            while len(iterations(REPLICAS * STAGES)) < HEALTHY:
                if time.monotonic() > deadline:
                    raise TimeoutError("torchrun did not come up")
                time.sleep(0.05)
            died = time.monotonic()
            for child in workers_of(agents[-1].pid):
                os.kill(child, signal.SIGKILL)
            agents[-1].kill()
            time.sleep(max(0.0, died + WINDOW - time.monotonic()))
            return died, iterations(smaller.replicas * STAGES)
        finally:
            for agent in agents:
                for child in [*workers_of(agent.pid), agent.pid]:
                    try:
                        os.kill(child, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                agent.wait()


def workers_of(agent: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]
    except FileNotFoundError:
        return []


def one_of_twelve() -> Iterator[str]:
    yield "| one of 12 workers lost | period, units | first iteration after, s | micro-batches a second | against adapting |"
    yield "|---|---:|---:|---:|---:|"
    adapted = Problem(REPLICAS, STAGES, MICROBATCHES, activation_cap=6, failed=frozenset({LOST}))
    smaller = Problem(REPLICAS - 1, STAGES, TOTAL // (REPLICAS - 1), activation_cap=6)
    plain = Problem(REPLICAS - 1, STAGES, TOTAL // (REPLICAS - 1), activation_cap=STAGES, mode=Mode.COUPLED)
    rest = [f"w{LOST[0]}{stage}" for stage in range(STAGES) if stage != LOST[1]]
    healthy = Problem(REPLICAS, STAGES, MICROBATCHES, activation_cap=STAGES, mode=Mode.COUPLED)
    assert one_f_one_b(plain) == plan(plain).period
    best = 0.0
    whole = Problem(REPLICAS, STAGES, MICROBATCHES, activation_cap=6)
    ways: list[tuple[str, Problem, Callable[[], tuple[float, Sequence[float]]]]] = [
        ("adapted: staggered, 11 workers", adapted, lambda: in_place(adapted)),
        ("shrunk in place: staggered, 2 replicas", smaller, lambda: in_place(smaller, rest)),
        ("shrunk in place: 1F1B, 2 replicas", plain, lambda: in_place(plain, rest)),
        ("adapted by a service, the lost one taken back", adapted, lambda: by_pitstop(whole)),
        ("torchrun: started again, 1F1B, 2 replicas", plain, lambda: by_torchrun(healthy, plain)),
    ]
    for what, problem, go_on in ways:
        died, ends = go_on()
        after = [end for end in ends if died < end <= died + WINDOW]
        rate = TOTAL * len(after) / WINDOW
        best = best or rate
        first = f"{after[0] - died:.1f}" if after else f"over {WINDOW:.0f}"
        yield f"| {what} | {plan(problem).period} | {first} | {rate:.2f} | {rate / best:.2f} |"


def run() -> str:
    note = (
        f"3 replicas of 4 stages with 6 micro-batches each, float64, one unit of a plan is {UNIT * 1000:.0f} ms. Gradients"
        f" (relative) and parameters after {ITERATIONS} steps of AdamW against one process without a pipeline."
    )
    after = (
        f"All do {TOTAL} micro-batches an iteration. Counted are those of iterations that ended within {WINDOW:.0f} s of"
        " the kill. The first three are told at once; the fourth has the whole of Pitstop in it: a failure is noticed, reported,"
        " diagnosed and decided, and the killed rank is started anew and taken back meanwhile. torchrun has one agent a replica,"
        " waits for late agents for 1 s only (30 s by default), and pays for no checkpoint and no lost iteration."
    )
    parts = [
        "# Running pipeline plans",
        note,
        "\n".join(periods()),
        "## One failure of twelve",
        after,
        "\n".join(one_of_twelve()),
    ]
    return "\n\n".join(parts)
