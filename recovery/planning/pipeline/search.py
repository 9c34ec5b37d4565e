"""Schedules from sweeps: list scheduling by rule, justification, and a random search around the best.

Justification: in reversed time, what started last goes first and stage s may begin at its deadline; then forwards again by the
starts found. A schedule is written down as its start times, (kinds, stages, total).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import ModuleType

import numpy as np

from recovery.planning.pipeline.model import Ints, Mode, Problem, Schedule, Shorts, route

__all__ = ["Sweeper", "justify", "list_schedules", "perturb"]


def _compiled() -> ModuleType:
    """Loaded when the first schedule is made: importing numba takes longer than most plans."""
    return import_module("recovery.planning.pipeline.sweep")


NOTHING = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Sweeper:
    """A problem with its routing, ready to be swept."""

    problem: Problem

    @cached_property
    def routing(self) -> Ints:
        return route(self.problem)

    @cached_property
    def queues(self) -> tuple[Ints, Ints]:
        offsets, flat = _compiled().queues(self.routing, self.problem.replicas)
        return offsets, flat

    @cached_property
    def lengths(self) -> Ints:
        return np.array(self.problem.lengths, dtype=np.int64) // self.problem.unit

    @cached_property
    def hop(self) -> int:
        return self.problem.durations.hop // self.problem.unit

    @cached_property
    def deadlines(self) -> Ints:
        """When each stage may begin in reversed time: its window ends as much later as its first F begins."""
        stages = np.arange(self.problem.stages, dtype=np.int64)
        if self.problem.mode is not Mode.STAGGERED:
            return np.zeros_like(stages)
        return (self.problem.stages - 1 - stages) * int(self.lengths[0] + self.hop)

    @cached_property
    def homes(self) -> Shorts:
        """The worker, stage * replicas + replica, of each (stage, micro-batch)."""
        workers = self.routing + np.arange(self.problem.stages)[:, None] * self.problem.replicas
        return workers.astype(np.int32).reshape(-1)

    @cached_property
    def rank(self) -> Shorts:
        """The key of FIFO order: b."""
        return np.tile(np.arange(self.problem.total, dtype=np.int32), len(self.lengths) * self.problem.stages)

    def _sweep(self, key: Shorts, begin: Ints, ahead: Ints, reverse: bool) -> Shorts | None:
        starts = np.empty((len(self.lengths), self.problem.stages, self.problem.total), dtype=np.int32)
        offsets, flat = self.queues
        keys = key.reshape(-1)
        done = _compiled().sweep(
            self.homes, offsets, flat, self.lengths, self.hop, self.problem.cap, keys, begin, ahead, reverse, starts
        )
        return starts if done else None

    def by_rule(self, ahead: Sequence[int]) -> Shorts | None:
        """Forwards; stage s has up to ahead[s] micro-batches under way before B goes before F."""
        return self._sweep(self.rank, np.zeros(self.problem.stages, dtype=np.int64), np.array(ahead, dtype=np.int64), False)

    def forwards(self, key: Shorts) -> Shorts | None:
        """The least key first."""
        return self._sweep(key - key.min(), np.zeros(self.problem.stages, dtype=np.int64), NOTHING, False)

    def backwards(self, key: Shorts) -> Shorts | None:
        """In reversed time, the greatest key first; what comes back is in the usual direction of time, from 0."""
        mirrored = self._sweep(key.max() - key, self.deadlines, NOTHING, True)
        if mirrored is None:
            return None
        ends = mirrored + self.lengths.astype(np.int32)[:, None, None]
        starts: Shorts = ends.max() - ends
        return starts

    def period(self, starts: Shorts) -> int:
        """In units of the problem's greatest common divisor."""
        begins, ends = _compiled().windows(starts, int(self.lengths[-1]))
        if self.problem.mode is Mode.STAGGERED:
            return int((ends - begins).max())
        return int(ends.max() - begins.min())

    def schedule(self, starts: Shorts) -> Schedule:
        return Schedule(self.problem, self.routing, starts.astype(np.int64) * self.problem.unit)


def list_schedules(sweeper: Sweeper, slacks: Sequence[int] = (0,)) -> Iterator[Shorts]:
    """One schedule by rule for each slack on top of the distance to the last stage (1F1B's number under way)."""
    stages = sweeper.problem.stages
    for slack in slacks:
        found = sweeper.by_rule([max(1, stages - stage + slack) for stage in range(stages)])
        if found is not None:
            yield found


def justify(sweeper: Sweeper, starts: Shorts, goal: int, rounds: int = 3) -> Shorts:
    """The best of `rounds` of backwards and forwards sweeps from `starts`; stops at `goal`."""
    best, least = starts, sweeper.period(starts)
    present = starts
    for _ in range(rounds):
        if least <= goal:
            break
        before = least
        for back in (True, False):
            found = sweeper.backwards(present) if back else sweeper.forwards(present)
            if found is None:
                return best
            present = found
            period = sweeper.period(present)
            if period < least:
                best, least = present, period
        if least == before:
            break
    return best


def perturb(sweeper: Sweeper, starts: Shorts, goal: int, sweeps: int, seed: int) -> Shorts:
    """A random walk of `sweeps` sweeps: keys shaken, backwards and forwards in turn, never to a longer period."""
    rng = np.random.default_rng(seed)
    best, least = starts, sweeper.period(starts)
    present, level = best, least
    since = 0
    # Keys are 31 bits; where times are small, parts of a unit tell operations apart.
    scale = max(1, min(16, (1 << 29) // (int(present.max()) + 1)))
    for step in range(sweeps):
        if least <= goal:
            break
        width = float(rng.choice((0.5, 1.0, 2.0, 4.0))) * float(sweeper.lengths.mean())
        shaken = np.rint((present + rng.normal(0.0, width, present.shape)) * scale).astype(np.int32)
        found = sweeper.backwards(shaken) if step % 2 == 0 else sweeper.forwards(shaken)
        if found is None:
            continue
        period = sweeper.period(found)
        since += 1
        if period <= level or since > 200:
            present, level, since = found, period, 0 if period < level or since > 200 else since
        if period < least:
            best, least = found, period
    return best
