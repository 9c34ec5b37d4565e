"""Throughput of a training job over time while workers fail and are repaired, under several ways to go on.

Everything is relative to the job without failures: to plain 1F1B and to the same mode's own schedule, as 1F1B alone flatters.
Workers are pipeline workers; the width of tensor parallelism is folded into them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from recovery.planning.pipeline.bounds import one_f_one_b
from recovery.planning.pipeline.cost import period_with, quick_period
from recovery.planning.pipeline.model import Mode, PipelineError, Problem, Routing

__all__ = ["SHAPES", "Change", "Policy", "Run", "Shape", "ablation", "absorbed_by_bubbles", "poisson_failures", "simulate"]


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as the papers train it. `microbatches` per pipeline; those of 18.4B and above are ours: batch / replicas / 4."""

    name: str
    layers: int
    replicas: int
    stages: int
    tensor: int
    microbatches: int

    def problem(self, mode: Mode = Mode.STAGGERED) -> Problem:
        """With the memory that 1F1B needs and half as much again."""
        cap = max(2, self.stages * 3 // 2)
        return Problem(self.replicas, self.stages, self.microbatches, mode=mode, activation_cap=cap, routing=Routing.FREE)


SHAPES = (
    Shape("GPT-3 Medium", 24, 16, 2, 1, 8),
    Shape("GPT-3 3.35B", 32, 8, 4, 1, 16),
    Shape("GPT-3 6.7B", 32, 4, 8, 1, 32),
    Shape("GPT-3 18.4B", 40, 4, 8, 8, 96),
    Shape("GPT-3 39.1B", 48, 8, 8, 8, 48),
    Shape("GPT-3 76.1B", 60, 8, 16, 8, 56),
    Shape("GPT-3 145.6B", 80, 12, 16, 8, 48),
)


class Policy(StrEnum):
    """adapt: ReCycle, normalised. fault_scaled: the share of workers that live. oobleck: each pipeline goes on over its living
    workers, layers dealt out anew. bamboo: redundant computation, a lost worker's neighbour does both. elastic: a pipeline with a
    lost worker is left out, the others go on (lost workers are gathered into as few pipelines as can be). spares: as many spare
    workers as one pipeline has stand by, and count as workers."""

    ADAPT = "adapt"
    FAULT_SCALED = "fault_scaled"
    OOBLECK = "oobleck"
    BAMBOO = "bamboo"
    ELASTIC = "elastic"
    SPARES = "spares"


# Bamboo without failures against plain training, from ReCycle's table 1 (19.47 and 18.98 of 27.58 samples/s at 6 h and 2 h): its
# redundant computation. Seconds lost at each change are assumptions, named in docs/pipeline.md.
BAMBOO = 0.706
CHANGE_SECONDS = {
    Policy.ADAPT: 15.0,
    Policy.FAULT_SCALED: 0.0,
    Policy.OOBLECK: 60.0,
    Policy.BAMBOO: 15.0,
    Policy.ELASTIC: 60.0,
    Policy.SPARES: 60.0,
}


@dataclass(frozen=True, slots=True)
class Change:
    """At `seconds`, `workers` more are failed (negative: repaired)."""

    seconds: float
    workers: int


@dataclass(frozen=True, slots=True)
class Run:
    """Mean throughput against plain 1F1B and against the same mode, both without failures. `steps`: from which second, against
    1F1B."""

    policy: Policy
    against_1f1b: float
    against_own: float
    steps: tuple[tuple[float, float], ...]


def poisson_failures(every_seconds: float, until: float, repair_seconds: float | None, seed: int) -> list[Change]:
    """Single workers fail at exponential distances; each is back after `repair_seconds`, or never."""
    draws = random.Random(seed)
    changes = []
    now = draws.expovariate(1 / every_seconds)
    while now < until:
        changes.append(Change(now, 1))
        if repair_seconds is not None:
            changes.append(Change(now + repair_seconds, -1))
        now += draws.expovariate(1 / every_seconds)
    return sorted(changes, key=lambda change: change.seconds)


@lru_cache(maxsize=4096)
def rate(shape: Shape, policy: Policy, failed: int) -> float:
    """Throughput with `failed` workers, plain 1F1B without failures being 1; 0 where training stops."""
    workers = shape.replicas * shape.stages
    if failed >= workers:
        return 0.0
    problem = shape.problem()
    reference = one_f_one_b(problem)
    if policy is Policy.FAULT_SCALED:
        return 1 - failed / workers
    if policy is Policy.ADAPT:
        try:
            return reference / period_with(problem, failed)
        except PipelineError:
            return 0.0
    if policy is Policy.BAMBOO:
        # The neighbour does two workers' work: its pipeline goes at half speed. Lost workers spread evenly.
        halved = min(failed, shape.replicas)
        return BAMBOO * max(0.0, 1 - halved / (2 * shape.replicas) - max(0, failed - halved) / workers)
    if policy is Policy.OOBLECK:
        return _oobleck(shape, failed)
    if policy is Policy.ELASTIC:
        return max(0, shape.replicas - -(-failed // shape.stages)) / shape.replicas
    # Spares take part in the count of workers: what the same machines would do without spares is 1.
    beyond = max(0, failed - shape.stages)
    return max(0.0, 1 - -(-beyond // shape.stages) / shape.replicas) * workers / (workers + shape.stages)


def _oobleck(shape: Shape, failed: int) -> float:
    """Pipelines of different depth, lost workers spread evenly, micro-batches dealt out by speed."""
    total = 0.0
    count = shape.microbatches
    whole = (count + shape.stages - 1) * (shape.layers / shape.stages)
    for replica in range(shape.replicas):
        lost = failed // shape.replicas + (replica < failed % shape.replicas)
        depth = shape.stages - lost
        if depth > 0:
            # The stage with most layers sets the pace.
            total += whole / ((count + depth - 1) * -(-shape.layers // depth))
    return min(1.0, total / shape.replicas)


def simulate(shape: Shape, policy: Policy, changes: Iterable[Change], until: float, change_seconds: float | None = None) -> Run:
    """Mean throughput from 0 to `until`. At each change nothing is done for `change_seconds` (the policy's, if None)."""
    pause = CHANGE_SECONDS[policy] if change_seconds is None else change_seconds
    failed, now, busy_from, done = 0, 0.0, 0.0, 0.0
    steps = [(0.0, rate(shape, policy, 0))]
    for change in [*sorted(changes, key=lambda item: item.seconds), Change(until, 0)]:
        at = min(change.seconds, until)
        done += steps[-1][1] * max(0.0, at - max(now, busy_from))
        now = at
        if at >= until:
            break
        failed = max(0, failed + change.workers)
        busy_from = at + pause
        steps.append((at, rate(shape, policy, failed)))
    mean = done / until
    return Run(policy, mean, mean / rate(shape, policy, 0), tuple(steps))


def absorbed_by_bubbles(problem: Problem) -> tuple[int, int]:
    """Failures that the bubbles of 1F1B hold: by the paper's sum, 3(PP-1)DP // 3m, and by area, DP - ceil(3m DP / T) a stage.

    The paper counts the bubbles of a failed worker too, which are gone with it.
    """
    times = problem.durations
    once = times.forward + times.backward + times.weight
    work = once * problem.microbatches
    bubbles = once * (problem.stages - 1) * problem.replicas
    return bubbles // work, problem.replicas - -(-work * problem.replicas // one_f_one_b(problem))


def ablation(problem: Problem, failures: int, draws: Sequence[int]) -> dict[str, float]:
    """Mean throughput against plain 1F1B without failures, over random places of `failures`, one technique after another.

    adaptive: micro-batches go to peers, backward whole; decoupled: W apart; staggered: no barrier; normalised: failures moved.
    """
    reference = one_f_one_b(problem)
    places = []
    for seed in draws:
        workers = [(replica, stage) for replica in range(problem.replicas) for stage in range(problem.stages)]
        draw = random.Random(seed)
        chosen = frozenset(draw.sample(workers, failures))
        while any(sum(stage == index for _, stage in chosen) >= problem.replicas for index in range(problem.stages)):
            chosen = frozenset(draw.sample(workers, failures))
        places.append(chosen)
    own = replace(problem, routing=Routing.OWN)
    found = {}
    for name, mode in (("adaptive", Mode.COUPLED), ("decoupled", Mode.DECOUPLED), ("staggered", Mode.STAGGERED)):
        rates = [reference / quick_period(replace(own, mode=mode, failed=failed)) for failed in places]
        found[name] = sum(rates) / len(rates)
    found["normalised"] = reference / period_with(replace(problem, mode=Mode.STAGGERED, failed=frozenset()), failures)
    return found
