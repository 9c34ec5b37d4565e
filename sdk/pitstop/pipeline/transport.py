"""Point-to-point messages between the workers of a plan, over torch.distributed.

Between two workers, messages of one direction are received in the order in which they are sent, which both know from the plan;
what comes early is kept. So no tags are needed, which NCCL does not have. Each direction has its own group, as NCCL runs the
messages of a group one after another.
"""

from typing import Any, Dict, List, Tuple

import torch
import torch.distributed as dist

from pitstop.pipeline.membership import Membership
from pitstop.pipeline.plan import Operation, Worker

__all__ = ["Transport"]


class Transport:
    """The links of one member in one generation. `example` has the shape, type and device of what passes between stages.

    Sending does not wait. Receiving waits, and raises RuntimeError where the other side is gone.
    """

    def __init__(self, membership: Membership, me: Worker, example: torch.Tensor) -> None:
        self.membership, self.me, self.example = membership, me, example
        self.ranks = {worker: rank for rank, worker in enumerate(membership.workers.values())}
        # The same calls in the same order at every member.
        self.down = dist.new_group()
        self.up = dist.new_group()
        self.stage_group: Any = None
        for stage in range(membership.plan.stages):
            group = dist.new_group(list(membership.peers(stage)))
            if stage == me[1]:
                self.stage_group = group
        self._incoming: Dict[Worker, Tuple[Operation, ...]] = {}
        self._next: Dict[Worker, int] = {}
        self._early: Dict[Operation, torch.Tensor] = {}
        self._sent: List[Tuple[Any, torch.Tensor]] = []
        self._sent_before: List[Tuple[Any, torch.Tensor]] = []

    def begin(self) -> None:
        """A new iteration: every link starts at its first message again."""
        self._next = {}
        self._early = {}

    def end(self) -> None:
        """Let go what was sent an iteration ago: by now the other side has gone on from it."""
        for work, _ in self._sent_before:
            work.wait()
        self._sent_before, self._sent = self._sent, []

    def send(self, operation: Operation, tensor: torch.Tensor) -> None:
        """The result of F to the next stage, that of B to the one before."""
        kind, batch = operation
        stage = self.me[1] + (1 if kind == "F" else -1)
        target = self.ranks[self.membership.plan.homes[batch][stage], stage]
        content = tensor.contiguous()
        self._sent.append((dist.isend(content, target, group=self.down if kind == "F" else self.up), content))

    def receive(self, operation: Operation) -> torch.Tensor:
        """What F (from the stage before) or B (from the next) of a micro-batch needs."""
        kind, batch = operation
        stage = self.me[1] + (-1 if kind == "F" else 1)
        source = (self.membership.plan.homes[batch][stage], stage)
        if source not in self._incoming:
            self._incoming[source] = self.membership.plan.messages(source, self.me)
        while operation not in self._early:
            index = self._next.get(source, 0)
            self._next[source] = index + 1
            tensor = torch.empty_like(self.example)
            work = dist.irecv(tensor, self.ranks[source], group=self.down if kind == "F" else self.up)
            work.wait()
            self._early[self._incoming[source][index]] = tensor
        return self._early.pop(operation)

    def sum_over_stage(self, tensor: torch.Tensor) -> None:
        """In place, over the living peers of this stage."""
        dist.all_reduce(tensor, group=self.stage_group)

    def close(self) -> None:
        """Close the links of micro-batches first: closing a group wakes those who wait on it. What was sent holds its group open,
        and those who wait for us would wait for ever while we form the next generation."""
        self._sent, self._sent_before, self._early = [], [], {}
        for group in (self.down, self.up, self.stage_group):
            dist.destroy_process_group(group)
        self.down = self.up = self.stage_group = None
        dist.destroy_process_group()
