"""A pipeline with failed workers as data: who is where, how long each operation takes, and who runs whose micro-batches.

Micro-batch b = j * replicas + k is the j-th of pipeline k. Times are integers in the unit of the profile. F is the forward pass,
B the input gradient, W the weight gradient; in mode coupled B carries its W. All of (b, stage) run on one worker.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import gcd

import numpy as np
from numpy.typing import NDArray

__all__ = ["Durations", "Ints", "Mode", "PipelineError", "Problem", "Routing", "Schedule", "Shorts", "Worker", "route"]

Worker = tuple[int, int]
Ints = NDArray[np.int64]
Shorts = NDArray[np.int32]

# The sweep keeps one bucket a unit of time that an operation can last.
LONGEST = 1_000_000
MOST_OPERATIONS = 20_000_000


class PipelineError(ValueError):
    """The specification cannot be planned for; the message says what is wrong."""


class Mode(StrEnum):
    """coupled: B and W in one; decoupled: W apart, one barrier an iteration; staggered: each stage steps on its own."""

    COUPLED = "coupled"
    DECOUPLED = "decoupled"
    STAGGERED = "staggered"


class Routing(StrEnum):
    """own: a living worker keeps its pipeline's micro-batches, orphans are dealt out; free: any living worker of the stage."""

    OWN = "own"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Durations:
    """Whole units of time; `hop` is the latency from one stage to the next."""

    forward: int = 1
    backward: int = 1
    weight: int = 1
    hop: int = 0


@dataclass(frozen=True)
class Problem:
    """What is to be scheduled. `failed` are (replica, stage); `activation_cap` is activations a worker may hold, None: no limit.

    Raises PipelineError for what cannot be planned; a stage without a living worker is of that kind.
    """

    replicas: int
    stages: int
    microbatches: int
    durations: Durations = Durations()
    mode: Mode = Mode.STAGGERED
    activation_cap: int | None = None
    failed: frozenset[Worker] = frozenset()
    routing: Routing = Routing.OWN

    def __post_init__(self) -> None:
        times = self.durations
        if min(self.replicas, self.stages, self.microbatches) < 1:
            raise PipelineError("replicas, stages and microbatches are at least 1")
        if min(times.forward, times.backward) < 1 or min(times.weight, times.hop) < 0:
            raise PipelineError("durations are whole numbers: F and B at least 1, W and hop at least 0")
        if max(times.forward, times.backward + times.weight, times.hop) > LONGEST:
            raise PipelineError(f"durations are at most {LONGEST} units; take a coarser unit of time")
        if self.total * self.stages * 3 > MOST_OPERATIONS:
            raise PipelineError(f"that is {self.total * self.stages * 3} operations; {MOST_OPERATIONS} is the most")
        if self.activation_cap is not None and self.activation_cap < 1:
            raise PipelineError("activation_cap is at least 1, or null for no limit")
        for replica, stage in self.failed:
            if not (0 <= replica < self.replicas and 0 <= stage < self.stages):
                raise PipelineError(f"failed worker [{replica}, {stage}] is not in a pipeline of {self.replicas} x {self.stages}")
        for stage, failures in enumerate(self.failures):
            if failures >= self.replicas:
                raise PipelineError(f"no worker of stage {stage} is alive: that needs a checkpoint, not a schedule")

    @property
    def total(self) -> int:
        """Micro-batches of one iteration, all pipelines together."""
        return self.replicas * self.microbatches

    @cached_property
    def cap(self) -> int:
        return min(self.total, self.activation_cap or self.total)

    @property
    def kinds(self) -> str:
        """The kinds of operation there are, in the order that a micro-batch goes through them."""
        return "FB" if self.mode is Mode.COUPLED else "FBW"

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """How long F, B (and W) occupy their worker."""
        times = self.durations
        if self.mode is Mode.COUPLED:
            return (times.forward, times.backward + times.weight)
        return (times.forward, times.backward, times.weight)

    @cached_property
    def unit(self) -> int:
        """The greatest common divisor of all durations."""
        return gcd(*self.lengths, self.durations.hop)

    @cached_property
    def failures(self) -> tuple[int, ...]:
        """Failed workers of each stage."""
        count = Counter(stage for _, stage in self.failed)
        return tuple(count[stage] for stage in range(self.stages))

    def alive(self, stage: int) -> list[int]:
        """The living replicas of `stage`, in order."""
        return [replica for replica in range(self.replicas) if (replica, stage) not in self.failed]


def route(problem: Problem) -> Ints:
    """The replica that runs micro-batch b at stage s, shape (stages, total)."""
    table = np.empty((problem.stages, problem.total), dtype=np.int64)
    everyone = np.arange(problem.total) % problem.replicas
    for stage in range(problem.stages):
        living = np.array(problem.alive(stage))
        if problem.routing is Routing.FREE:
            table[stage] = living[np.arange(problem.total) % len(living)]
            continue
        table[stage] = everyone
        orphans = np.flatnonzero(~np.isin(everyone, living))
        table[stage, orphans] = living[np.arange(len(orphans)) % len(living)]
    return table


@dataclass(frozen=True, eq=False)
class Schedule:
    """Start times, shape (kinds, stages, total), and the routing (stages, total) that they are for."""

    problem: Problem
    routing: Ints
    starts: Ints

    @cached_property
    def period(self) -> int:
        """The length of one iteration: of the longest stage window where staggered, else from the first start to the last end."""
        begins = self.starts[0].min(axis=1)
        ends = self.starts[-1].max(axis=1) + self.problem.lengths[-1]
        if self.problem.mode is Mode.STAGGERED:
            return int((ends - begins).max())
        return int(ends.max() - begins.min())

    def columns(self) -> Ints:
        """One column an operation: replica, stage, kind as index into "FBW", micro-batch, start; shape (5, operations)."""
        kind, stage, batch = np.indices(self.starts.shape).reshape(3, -1)
        replica = np.broadcast_to(self.routing, self.starts.shape).reshape(-1)
        return np.stack([replica, stage, kind, batch, self.starts.reshape(-1)])

    def table(self) -> Ints:
        """One row an operation, as in `columns`, by start, then worker."""
        columns = self.columns()
        replica, stage, kind, _, start = columns
        rows: Ints = columns.T[np.lexsort((kind, stage, replica, start))]
        return rows
