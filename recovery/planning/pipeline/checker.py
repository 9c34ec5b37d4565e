"""An independent check of a plan: it trusts nothing that the planner computed but the list of operations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recovery.planning.pipeline.model import Ints, Mode, Problem

__all__ = ["check_plan"]

# Worker and moment together, as one number beside 4 bits for the kind of operation.
FARTHEST = 1 << 59


def check_plan(problem: Problem, operations: Ints, period: int) -> list[str]:
    """What is wrong with a plan, in words (one example a kind of fault); empty if it is valid and really takes `period`.

    `operations` is one row an operation: replica, stage, kind (0 F, 1 B, 2 W), micro-batch, start.
    """
    replica, stage, kind, batch, start = operations.T
    kinds = 2 if problem.mode is Mode.COUPLED else 3
    times = problem.durations
    length = np.array([times.forward, times.backward, times.weight])
    if problem.mode is Mode.COUPLED:
        length = np.array([times.forward, times.backward + times.weight])
    known = (kind >= 0) & (kind < kinds) & (batch >= 0) & (batch < problem.total)
    known &= (stage >= 0) & (stage < problem.stages) & (replica >= 0) & (replica < problem.replicas)
    if not known.all():
        return [f"operation {operations[~known][0].tolist()} is none of this pipeline"]
    shape = (kinds, problem.stages, problem.total)
    place = np.ravel_multi_index((kind, stage, batch), shape)
    times_seen = np.bincount(place, minlength=kinds * problem.stages * problem.total)
    if (times_seen != 1).any():
        which = int(np.flatnonzero(times_seen != 1)[0])
        return [
            f"operation (kind, stage, micro-batch) {np.unravel_index(which, shape)} is there {times_seen[which]} times, not once"
        ]

    wrong: list[str] = []

    def must(holds: NDArray[np.bool_], message: str) -> None:
        if not holds.all():
            where = [int(index) for index in np.argwhere(~holds)[0]]
            wrong.append(f"{message}: {(~holds).sum()} times, first at {where}")

    dead = np.zeros((problem.replicas, problem.stages), dtype=bool)
    for row, column in problem.failed:
        dead[row, column] = True
    must(~dead[replica, stage], "an operation runs on a failed worker")
    must(start >= 0, "an operation starts before time 0")

    begins = np.empty(shape, dtype=np.int64)
    begins.reshape(-1)[place] = start
    homes = np.empty(shape, dtype=np.int64)
    homes.reshape(-1)[place] = replica
    must(
        (homes == homes[0]).all(axis=0),
        "the operations of a micro-batch at a stage (stage, micro-batch) are on different workers",
    )
    forward, backward = begins[0], begins[1]
    must(forward[1:] >= forward[:-1] + length[0] + times.hop, "F (stage - 1, micro-batch) starts before it arrives")
    must(backward[:-1] >= backward[1:] + length[1] + times.hop, "B (stage, micro-batch) starts before its gradient arrives")
    must(backward >= forward + length[0], "B (stage, micro-batch) starts before its F ends")
    if kinds == 3:
        must(begins[2] >= backward + length[1], "W (stage, micro-batch) starts before its B ends")

    worker = replica * problem.stages + stage
    span = int(start.max()) + int(length.max()) + 1
    if problem.replicas * problem.stages * span >= FARTHEST:
        return [f"it lasts {span} units, too long to be checked; take a coarser unit of time"]
    # Numbers that are sorted carry their operation's kind: that is several times as fast as sorting positions. At one moment, an
    # operation of no length comes before one that lasts.
    order = np.sort(((worker * span + start) * 2 + (length[kind] > 0)) * 4 + kind)
    moment = order >> 3
    apart = moment[1:] >= moment[:-1] + length[order & 3][:-1]
    must(apart | (moment[1:] // span != moment[:-1] // span), "a worker does two things at once (position in its order)")

    # An activation counts from the start of F to the end of the last operation; a release at a moment comes before a start.
    taken, given = kind == 0, kind == kinds - 1
    moments = np.sort(
        np.concatenate([(worker * span + start)[taken] * 2 + 1, (worker * span + start + length[kinds - 1])[given] * 2])
    )
    # Every worker gives back what it took, so one running sum over all of them, in turn, starts each at nothing.
    held = np.cumsum((moments & 1) * 2 - 1)
    must(held <= problem.cap, f"a worker holds more than the {problem.cap} activations that are allowed")

    ends = begins[-1].max(axis=1) + length[-1]
    if problem.mode is Mode.STAGGERED:
        real = int((ends - forward.min(axis=1)).max())
    else:
        real = int(ends.max() - forward.min())
    if real != period:
        wrong.append(f"it takes {real}, not {period}")
    return wrong
