"""A pipeline plan as an executor needs it: who runs what in which order, and proof that nobody will wait in a circle."""

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any, Deque, Dict, FrozenSet, List, Mapping, Tuple

__all__ = ["Operation", "PipelinePlan", "PlanError", "Worker"]

Worker = Tuple[int, int]
# Kind (F, B or W) and micro-batch.
Operation = Tuple[str, int]


class PlanError(ValueError):
    """The plan cannot be run; the message says why."""


@dataclass(frozen=True)
class PipelinePlan:
    """`orders` by worker (replica, stage); `homes[b][s]` is the replica that has micro-batch b at stage s.

    `staggered`: no barrier between iterations. Without W operations, B carries its weight gradient.
    """

    stages: int
    total: int
    period: int
    staggered: bool
    orders: Mapping[Worker, Tuple[Operation, ...]]
    homes: Tuple[Tuple[int, ...], ...]
    failed: FrozenSet[Worker]

    @property
    def coupled(self) -> bool:
        return all(kind != "W" for order in self.orders.values() for kind, _ in order)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "PipelinePlan":
        """Read what `pitstop pipeline plan --json` printed. Raises PlanError, also where its order has a cycle."""
        try:
            rows = sorted(document["ops"], key=lambda row: (row[4], "FBW".index(row[2])))
            failed = frozenset((int(replica), int(stage)) for replica, stage in document["normalised"])
            stages = 1 + max(row[1] for row in rows)
            total = 1 + max(row[3] for row in rows)
            staggered = document["mode"] == "staggered"
            period = int(document["period"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise PlanError(f"this is no pipeline plan: {error!r}") from None
        homes: List[List[int]] = [[-1] * stages for _ in range(total)]
        orders: Dict[Worker, List[Operation]] = defaultdict(list)
        for replica, stage, kind, batch, _ in rows:
            if (replica, stage) in failed:
                raise PlanError(f"{kind} of micro-batch {batch} is on the failed worker ({replica}, {stage})")
            if homes[batch][stage] not in (-1, replica):
                raise PlanError(f"micro-batch {batch} at stage {stage} is on two workers")
            homes[batch][stage] = replica
            orders[replica, stage].append((kind, batch))
        plan = cls(
            stages,
            total,
            period,
            staggered,
            {worker: tuple(order) for worker, order in orders.items()},
            tuple(tuple(row) for row in homes),
            failed,
        )
        plan.check()
        return plan

    def check(self) -> None:
        """Raise PlanError where an operation is missing or doubled, or where order and messages wait in a circle."""
        kinds = "FB" if self.coupled else "FBW"
        after: Dict[Tuple[str, int, int], List[Tuple[str, int, int]]] = defaultdict(list)
        waits: Dict[Tuple[str, int, int], int] = {}
        for (_, stage), order in self.orders.items():
            for kind, batch in order:
                if (kind, batch, stage) in waits:
                    raise PlanError(f"{kind} of micro-batch {batch} at stage {stage} is there twice")
                waits[kind, batch, stage] = 0
        if len(waits) != len(kinds) * self.total * self.stages:
            raise PlanError(f"{len(kinds) * self.total * self.stages} operations are needed, {len(waits)} are there")

        def edge(first: Tuple[str, int, int], second: Tuple[str, int, int]) -> None:
            after[first].append(second)
            waits[second] += 1

        for (_, stage), order in self.orders.items():
            for (kind, batch), (next_kind, next_batch) in zip(order, order[1:]):
                edge((kind, batch, stage), (next_kind, next_batch, stage))
        for batch in range(self.total):
            for stage in range(self.stages):
                if stage:
                    edge(("F", batch, stage - 1), ("F", batch, stage))
                    edge(("B", batch, stage), ("B", batch, stage - 1))
                edge(("F", batch, stage), ("B", batch, stage))
                if "W" in kinds:
                    edge(("B", batch, stage), ("W", batch, stage))
        ready: Deque[Tuple[str, int, int]] = deque(key for key, count in waits.items() if count == 0)
        done = 0
        while ready:
            key = ready.popleft()
            done += 1
            for follower in after[key]:
                waits[follower] -= 1
                if waits[follower] == 0:
                    ready.append(follower)
        if done != len(waits):
            stuck = sorted(key for key, count in waits.items() if count)[0]
            raise PlanError(
                f"the order has a cycle: {stuck[0]} of micro-batch {stuck[1]} at stage {stuck[2]} would wait for ever"
            )

    def messages(self, source: Worker, target: Worker) -> Tuple[Operation, ...]:
        """What `source` sends to `target`, in the order of sending: ("F", b) activations or ("B", b) gradients."""
        down = target[1] == source[1] + 1
        if not down and target[1] != source[1] - 1:
            return ()
        wanted = "F" if down else "B"
        return tuple(
            (kind, batch)
            for kind, batch in self.orders.get(source, ())
            if kind == wanted and self.homes[batch][target[1]] == target[0]
        )
