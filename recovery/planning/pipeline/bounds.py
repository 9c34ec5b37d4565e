"""Lower bounds on the period that hold for any routing and any order, stage by stage; and where failures hurt least."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from recovery.planning.pipeline.model import Mode, PipelineError, Problem, Worker

__all__ = ["Bounds", "lower_bound", "one_f_one_b", "stage_bound", "workers_of"]


def stage_bound(problem: Problem, stage: int, failures: int) -> int:
    """The bound from one stage with `failures` failed workers: the work of its busiest worker, and what it must wait for."""
    forward, backward, *rest = problem.lengths
    weight = rest[0] if rest else 0
    hop, cap = problem.durations.hop, problem.cap
    count = -(-problem.total // (problem.replicas - failures))
    round_trip = forward + backward + 2 * hop
    # From the end of a micro-batch's F to the start of its B.
    gap = (problem.stages - 1 - stage) * round_trip
    # Before the first B comes back, only as many F fit as activations may be held.
    early = min(count, cap)
    head = max(0, gap - (early - 1) * forward)
    tail = max(0, gap - (early - 1) * (backward + weight)) if count > cap else 0
    own = count * (forward + backward + weight) + head + tail
    if problem.mode is not Mode.STAGGERED:
        own += stage * (forward + hop)
    if stage == 0:
        return own
    # The window of stage 0 holds its first F and its last B and W, and all of this stage's F and B on the way between them.
    over = count - cap
    if over > 0:
        # Memory has this many be over, to their W, before the last F, which comes behind the head and has to go on and back.
        busy = head + count * forward + over * weight + max(count * backward, over * backward + gap + backward)
    else:
        busy = max(head + count * (forward + backward), count * forward + gap + backward)
    up = stage * round_trip + busy + weight
    return max(own, up)


def lower_bound(problem: Problem) -> int:
    """A period that no schedule of `problem` can beat, however its micro-batches are routed."""
    return max(stage_bound(problem, stage, failures) for stage, failures in enumerate(problem.failures))


def one_f_one_b(problem: Problem) -> int:
    """The period of plain 1F1B (coupled, one barrier) without failures: the reference that the paper takes.

    Each stage runs min(stages - stage, microbatches) forwards, then B and F in turn; pipelines do not touch one another.
    """
    times = problem.durations
    length = {"F": times.forward, "B": times.backward + times.weight}
    stages, count = problem.stages, problem.microbatches
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage, count)
        order = [("F", j) for j in range(ahead)]
        for j in range(count):
            order.append(("B", j))
            if j + ahead < count:
                order.append(("F", j + ahead))
        orders.append(order)
    ends: dict[tuple[str, int, int], int] = {}
    free, position = [0] * stages, [0] * stages
    left = 2 * stages * count
    while left:
        for stage in range(stages):
            while position[stage] < len(orders[stage]):
                kind, j = orders[stage][position[stage]]
                if kind == "F":
                    needs = ("F", j, stage - 1) if stage else None
                else:
                    needs = ("B", j, stage + 1) if stage < stages - 1 else None
                if needs is not None and needs not in ends:
                    break
                ready = 0 if needs is None else ends[needs] + times.hop
                free[stage] = max(free[stage], ready) + length[kind]
                ends[kind, j, stage] = free[stage]
                position[stage] += 1
                left -= 1
    return max(free)


def workers_of(failures: Sequence[int], replicas: int) -> frozenset[Worker]:
    """Failed workers by their number at each stage: the last replicas of it, as rows within a stage are interchangeable."""
    return frozenset((replicas - 1 - index, stage) for stage, count in enumerate(failures) for index in range(count))


class Bounds:
    """The bound of every stage with every number of failures, for a problem whose own failures do not count."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.table = [
            [stage_bound(problem, stage, count) for count in range(problem.replicas)] for stage in range(problem.stages)
        ]

    @cached_property
    def levels(self) -> list[int]:
        return sorted({value for row in self.table for value in row})

    @property
    def most(self) -> int:
        """The most failures that leave each stage a worker."""
        return self.problem.stages * (self.problem.replicas - 1)

    def bearable(self, limit: float) -> list[int]:
        """How many failures each stage can bear within a period of `limit`; -1 where not even none."""
        return [max((count for count, value in enumerate(row) if value <= limit), default=-1) for row in self.table]

    def least(self, failures: int) -> int:
        """The least period at which the stages together bear `failures`.

        Exact for the bound, as the bound of a stage only rises with its failures. Raises PipelineError where there are too many.
        """
        if not 0 <= failures <= self.most:
            raise PipelineError(f"{failures} failures: between 0 and {self.most} leave every stage a worker")
        low, high = 0, len(self.levels) - 1
        while low < high:
            middle = (low + high) // 2
            bearable = self.bearable(self.levels[middle])
            if min(bearable) >= 0 and sum(bearable) >= failures:
                high = middle
            else:
                low = middle + 1
        return self.levels[low]

    def spread(self, failures: int, limit: float | None = None, *, even: bool = False) -> tuple[int, ...]:
        """How many failures to have at each stage: `failures` in all, none beyond what it bears within `limit`.

        What is too many is taken from the stage with most failures (`even`) or from the one with the highest bound. Raises
        PipelineError where `limit` does not bear them.
        """
        most = self.bearable(self.least(failures) if limit is None else limit)
        if min(most) < 0 or sum(most) < failures:
            raise PipelineError(f"a period of {limit} does not bear {failures} failures")
        while sum(most) > failures:
            stage = max(
                (index for index in range(len(most)) if most[index] > 0),
                key=lambda index: (
                    (most[index], self.table[index][most[index]]) if even else (self.table[index][most[index]], most[index])
                ),
            )
            most[stage] -= 1
        return tuple(most)
