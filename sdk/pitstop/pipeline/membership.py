"""Who takes part in a pipeline, by generation: published by whoever watches the workers, awaited by the workers.

A store is torch.distributed's (TCPStore, FileStore). Generations only rise; the newest one holds.
"""

import json
import time
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from pitstop.pipeline.plan import PipelinePlan, PlanError, Worker

__all__ = ["Membership", "await_membership", "newest_generation", "publish"]

NEWEST = "pitstop/pipeline/newest"
KEY = "pitstop/pipeline/generation/"
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Membership:
    """`workers` by member id, in the order of their ranks. `sources`: from whom a member copies its stage's parameters and
    optimizer state; who is not in it keeps what it has."""

    generation: int
    plan: PipelinePlan
    workers: Mapping[str, Worker]
    sources: Mapping[str, str]

    def rank(self, member: str) -> int:
        return list(self.workers).index(member)

    def member_at(self, worker: Worker) -> str:
        for member, place in self.workers.items():
            if place == worker:
                return member
        raise PlanError(f"nobody is at {worker}")

    def peers(self, stage: int) -> Tuple[int, ...]:
        """Ranks of the living workers of a stage."""
        return tuple(rank for rank, worker in enumerate(self.workers.values()) if worker[1] == stage)

    def check(self) -> None:
        """Raises PlanError where the plan needs a worker that nobody is, or where a copy has no fitting source."""
        for worker in self.plan.orders:
            self.member_at(worker)
        if len(set(self.workers.values())) != len(self.workers):
            raise PlanError("two members have one place")
        for member, source in self.sources.items():
            if source in self.sources or self.workers[source][1] != self.workers[member][1]:
                raise PlanError(f"{member} cannot copy from {source}: it needs a peer of its stage that has the parameters")
        for stage in range(self.plan.stages):
            if all(member in self.sources for member, worker in self.workers.items() if worker[1] == stage):
                raise PlanError(f"nobody has the parameters of stage {stage}: that needs a checkpoint")


def publish(
    store: Any,
    generation: int,
    plan: Mapping[str, Any],
    workers: Mapping[str, Worker],
    sources: Optional[Mapping[str, str]] = None,
) -> None:
    """Let this generation hold from now on; `plan` is the planner's document. Raises PlanError before anything is told."""
    Membership(generation, PipelinePlan.from_document(plan), dict(workers), dict(sources or {})).check()
    members = [
        {"id": member, "worker": list(worker), "source": (sources or {}).get(member)} for member, worker in workers.items()
    ]
    store.set(f"{KEY}{generation}", json.dumps({"plan": dict(plan), "members": members}))
    store.set(NEWEST, str(generation))


def newest_generation(store: Any) -> int:
    """0 before the first."""
    return int(store.get(NEWEST)) if store.check([NEWEST]) else 0


def await_membership(store: Any, after: int, member: str, timeout: float) -> Membership:
    """The newest generation above `after` that has `member` in it. Raises TimeoutError."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        newest = newest_generation(store)
        if newest > after:
            document = json.loads(store.get(f"{KEY}{newest}"))
            workers: Dict[str, Worker] = {item["id"]: (item["worker"][0], item["worker"][1]) for item in document["members"]}
            if member in workers:
                sources = {item["id"]: item["source"] for item in document["members"] if item["source"] is not None}
                return Membership(newest, PipelinePlan.from_document(document["plan"]), workers, sources)
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"no generation above {after} with {member} in it came within {timeout} s")
