"""How the planner asks what a job is worth that goes on without its lost nodes or workers by adapting its pipelines."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from recovery.planning.alternatives import Adapted, Adapter, Alternative, AlternativeKind, Segment
from recovery.planning.cluster import ClusterState, TaskState
from recovery.planning.pipeline.cost import Periods
from recovery.planning.pipeline.model import Worker

__all__ = ["adapter_of", "never", "priced_worker_loss"]


def adapter_of(state: ClusterState, horizon_seconds: float, periods: Periods | None = None) -> Adapter:
    """For tasks of `state` that say how their pipelines are; FLOP/s fall as the period grows, the batch stays."""

    def adapter(task: TaskState, lost: int) -> Adapted | None:
        present = len(task.nodes)
        if task.pipeline is None or present >= len(task.throughput):
            return None
        gone = [index for index, node in enumerate(task.nodes) if not state.sites[node].usable]
        priced = task.pipeline.without(gone, horizon_seconds, periods)
        if priced is None:
            return None
        seconds = task.adapt_seconds or priced.transition_seconds
        back = task.pipeline.transition.joining_seconds
        return Adapted(task.throughput[present] / priced.period_ratio, seconds, priced.reason, back)

    return adapter


def never(task: TaskState, lost: int) -> Adapted | None:
    """The adapter of jobs whose ranks cannot go on in their processes."""
    return None


def priced_worker_loss(
    task: TaskState, workers: Collection[Worker], horizon_seconds: float, periods: Periods | None = None
) -> tuple[Alternative, ...]:
    """The ways on where workers ended and their nodes are there, the best first: start the whole job again where it was, or
    adapt its pipelines until the lost workers, started anew beside the others, can be taken back.

    Empty where the pipelines cannot be adapted.
    """
    priced = None if task.pipeline is None else task.pipeline.without_workers(workers, horizon_seconds, periods)
    if task.pipeline is None or priced is None:
        return ()
    present, worth = {task.name: len(task.nodes)}, task.worth(len(task.nodes))
    seconds, times = task.adapt_seconds or priced.transition_seconds, task.pipeline.transition
    back = max(seconds, times.start_seconds)
    adapted = [(0.0, 0.0), (seconds, worth / priced.period_ratio), (back, 0.0), (back + times.joining_seconds, worth)]
    found = (
        Alternative(
            AlternativeKind.ADAPT_PIPELINE,
            f"{task.name} gives the work of {len(workers)} lost workers to their data-parallel peers ({priced.reason}; goes on "
            f"after about {seconds:.0f} s) until they are taken back",
            present,
            _segments(adapted, horizon_seconds),
        ),
        Alternative(
            AlternativeKind.RESTART_IN_PLACE,
            f"{task.name} is started again where it was, which takes about {task.transition_seconds:.0f} s",
            present,
            _segments([(0.0, 0.0), (task.transition_seconds, worth)], horizon_seconds),
        ),
    )
    return tuple(sorted(found, key=lambda item: -item.accumulated))


def _segments(line: list[tuple[float, float]], horizon: float) -> tuple[Segment, ...]:
    """Of what holds from when on, as far as `horizon`."""
    ends = [*((min(at, horizon), value) for at, value in line), (horizon, 0.0)]
    return tuple(Segment(later - at, value) for (at, value), (later, _) in pairwise(ends) if later > at)
