"""How the planner asks what a job is worth that goes on without its lost nodes by adapting its pipelines."""

from __future__ import annotations

from recovery.planning.alternatives import Adapted, Adapter
from recovery.planning.cluster import ClusterState, TaskState

__all__ = ["adapter_of"]


def adapter_of(state: ClusterState, horizon_seconds: float) -> Adapter:
    """For tasks of `state` that say how their pipelines are; FLOP/s fall as the period grows, the batch stays."""

    def adapter(task: TaskState, lost: int) -> Adapted | None:
        present = len(task.nodes)
        if task.pipeline is None or present >= len(task.throughput):
            return None
        gone = [index for index, node in enumerate(task.nodes) if not state.sites[node].usable]
        priced = task.pipeline.without(gone, horizon_seconds)
        if priced is None:
            return None
        return Adapted(task.throughput[present] / priced.period_ratio, priced.transition_seconds)

    return adapter
