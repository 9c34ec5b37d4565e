"""`pitstop.Elastic`: data-parallel training that survives its ranks.

    def loss_of(ids):                     # the loss of one micro-batch, a mean over its samples
        return criterion(model(inputs[ids]), targets[ids])

    training = pitstop.Elastic(model, optimizer, sampler, loss_of, micro_batches=8, checkpoints="/checkpoints/run1")
    for step, loss in training.steps(10_000):
        print(step, loss)

A step: every rank computes its share of the micro-batches, gradients are summed bucket by bucket, all members agree that the sum
is complete, and only then does each apply it. When a rank is lost the others form a new group in the same process and finish the
very step: gradients that they hold are kept, buckets that are reduced are used as they are, the lost rank's micro-batches are
shared out.
"""

import os
import sys
import time
import zlib
from typing import AbstractSet, Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch

from pitstop import protocol
from pitstop.checkpoint.capture import decode, encode
from pitstop.checkpoint.checkpointer import Checkpointer
from pitstop.elastic.group import Lost, Ring
from pitstop.elastic.membership import await_formation, first_formation, follow_log, mark
from pitstop.elastic.shares import Shares, Standing, Verdict, first_shares, judge_standing, redistributed
from pitstop.monitor import init
from pitstop.sampler import Sampler, mixed

__all__ = ["Elastic"]

BUCKET_BYTES = 25 << 20
DIRECTIVE_SECONDS = 120.0
# A collective waits for the slowest rank's share: Unicron's three mean iterations, as for any hang.
FACTOR, FLOOR_SECONDS, UNKNOWN_SECONDS, WARM_UP = 3.0, 0.3, 600.0, 3


def say(text: str) -> None:
    sys.stderr.write("pitstop elastic: %s\n" % text)
    sys.stderr.flush()


class Elastic:
    """One rank's part. Every rank makes one with equal arguments.

    `loss_of(ids)`: the mean loss of one micro-batch, with its graph. `micro_batches`: into how many a global batch is cut, the
    same however many ranks share them. `checkpoints`: a folder, saved to every `save_every` steps; without it state lives in the
    replicas only. `backend`: of torch.distributed; chosen by the model's device where None.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        sampler: Sampler,
        loss_of: Callable[[List[int]], torch.Tensor],
        *,
        micro_batches: int,
        checkpoints: Optional[str] = None,
        save_every: int = 100,
        bucket_bytes: int = BUCKET_BYTES,
        backend: Optional[str] = None,
    ) -> None:
        if micro_batches < 1 or sampler.batch % micro_batches:
            raise ValueError("a batch of %d samples is not cut into %d equal parts" % (sampler.batch, micro_batches))
        self.model, self.optimizer, self.sampler = model, optimizer, sampler
        self.micro_batches = micro_batches
        self.reformed = 0
        self._loss_of = loss_of
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._buckets = buckets_of(self._parameters, bucket_bytes)
        self._save_every = save_every
        self._monitor = init()
        self._seconds: List[float] = []
        self.rank = int(os.environ.get("RANK") or 0)
        self._path = os.environ.get(protocol.FORMATION)
        cuda = any(parameter.is_cuda for parameter in self._parameters)
        self._device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
        self.ring = Ring(self.rank, backend or ("nccl" if cuda else "gloo"), self._path, self._threshold)
        self._step = -1
        self._shares: Shares = {}
        self._done: Set[int] = set()
        self._losses: Dict[int, float] = {}
        self._reduced: List[torch.Tensor] = []
        self._keeper: Optional[Checkpointer] = None
        if self._path is not None:
            mark(self._path, self.rank)
        self._begin(checkpoints)

    def _threshold(self) -> float:
        if len(self._seconds) < WARM_UP:
            return UNKNOWN_SECONDS
        return FACTOR * sum(self._seconds) / len(self._seconds) + FLOOR_SECONDS

    def _begin(self, checkpoints: Optional[str]) -> None:
        """Form the first group, and start from the newest checkpoint where there is one."""
        formation = first_formation(self.rank)
        joins = os.environ.get(protocol.JOINS) == "1"
        if joins:
            formation = await_formation(self._path, self.rank, formation.generation - 1, DIRECTIVE_SECONDS, joins=True)
        self.ring.form(formation)
        if checkpoints is not None:
            state = {"model": self.model, "optimizer": self.optimizer, "sampler": self.sampler}
            self._keeper = Checkpointer(checkpoints, random=False, **state)
            if not joins:
                found = self._keeper.restore()
                if found.step is not None and self.ring.place == 0:
                    say("going on from step %d (%s)" % (found.step, ", ".join(sorted(set(found.tiers)))))
        if joins:
            self._come_together()
            return
        # Replicas are equal from the first step on.
        self.ring.broadcast([parameter.data for parameter in self._parameters], formation.members[0])
        self._turn_to_next()

    def _turn_to_next(self) -> None:
        """Begin a step: nothing of it is done."""
        self._step = self.sampler.next_number()
        assert self.ring.formation is not None
        self._shares = first_shares(self.micro_batches, self.ring.formation.members)
        self._done, self._losses, self._reduced = set(), {}, []
        self.optimizer.zero_grad(set_to_none=True)

    def steps(self, end: int) -> Iterator[Tuple[int, float]]:
        """(number, mean loss of this rank's micro-batches) of each step below `end`, once all members have it."""
        while self._step < end:
            number, began = self._step, time.monotonic()
            with self._monitor.step(number):
                loss = self._finish_step(number)
            self._seconds = [*self._seconds[-63:], time.monotonic() - began]
            self._monitor.report(loss=loss)
            yield number, loss
            if self.ring.agreed_to_leave:
                self._reform()
        if self._keeper is not None:
            self._keeper.save(self._step)
        self._part()

    def _part(self) -> None:
        """Leave together: one that ended alone would be missed by another that still has to apply the last step."""
        self.ring.stepping = False
        while True:
            try:
                self.ring.sum(torch.ones(1, device=self._device))
                break
            except Lost:
                self.ring.abandon()
                self._reform()
        self.ring.close()

    def _finish_step(self, number: int) -> float:
        """Work until step `number` is applied, through however many losses of ranks."""
        mean = 0.0
        while self._step == number:
            try:
                self.ring.stepping = True
                self._compute()
                self._reduce()
                self._agree()
                mean = sum(self._losses.values()) / len(self._losses) if self._losses else 0.0
                self._apply()
            except Lost as problem:
                self.ring.abandon()
                say("rank %d lost its group in step %d: %s" % (self.rank, self._step, problem))
                self._reform()
        return mean

    def _compute(self) -> None:
        """The micro-batches of our share that are not done."""
        if len(self._reduced) == len(self._buckets):
            return
        ids = self.sampler.ids(self._step)
        size = len(ids) // self.micro_batches
        for number in self._shares.get(self.rank, ()):
            if number in self._done:
                continue
            self.ring.check()
            # Whoever computes it draws the same random numbers.
            torch.manual_seed(mixed(mixed(self.sampler.seed + self._step) + number) >> 1)
            loss = self._loss_of(ids[number * size : (number + 1) * size])
            (loss / self.micro_batches).backward()
            self._done.add(number)
            self._losses[number] = float(loss.detach())

    def _reduce(self) -> None:
        """Sum the gradients over the members, bucket by bucket, in memory of their own: a sum that fails spoils nothing."""
        for number in range(len(self._reduced), len(self._buckets)):
            flat = self._flat(number)
            with self._monitor.sync():
                self.ring.sum(flat)
            self._reduced.append(flat)

    def _flat(self, number: int) -> torch.Tensor:
        parts = []
        for parameter in self._buckets[number]:
            gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            parts.append(gradient.reshape(-1))
        return torch.cat(parts)

    def _agree(self) -> None:
        """Every member's reduction is complete. Raises Lost where one cannot say so any more."""
        votes = torch.tensor([1, int(self.ring.pending)], device=self._device)
        with self._monitor.sync():
            self.ring.sum(votes)
        if int(votes[0]) != self.ring.size:
            raise Lost("%d of %d members agreed" % (int(votes[0]), self.ring.size))
        # All see the same votes, so all leave after the same step.
        self.ring.agreed_to_leave = int(votes[1]) > 0

    def _apply(self) -> None:
        """Take the step. No collective is in here: it is done whole, or this rank is no more."""
        for bucket, flat in zip(self._buckets, self._reduced):
            at = 0
            for parameter in bucket:
                size = parameter.numel()
                parameter.grad = flat[at : at + size].view_as(parameter)
                at += size
        self.optimizer.step()
        self.sampler.position = self._step + 1
        self._turn_to_next()
        if self._keeper is not None and self._step % self._save_every == 0:
            self._keeper.save(self._step)

    def _reform(self) -> None:
        """Wait for the next generation and come together under it; again where a member is lost meanwhile. Raises Left."""
        began = time.monotonic()
        assert self.ring.formation is not None
        above = self.ring.formation.generation
        self.ring.stepping = False
        while True:
            if self._path is not None:
                mark(self._path, self.rank, above)
            with self._monitor.sync():
                formation = await_formation(self._path, self.rank, above, DIRECTIVE_SECONDS)
            above = formation.generation
            follow_log(formation)
            try:
                self.ring.form(formation)
                self._come_together()
                break
            except Lost as problem:
                self.ring.abandon()
                say("rank %d: generation %d did not hold: %s" % (self.rank, above, problem))
        if self._path is not None:
            mark(self._path, self.rank)
        self.reformed += 1
        seconds = time.monotonic() - began
        say("rank %d goes on in generation %d, step %d, after %.3f s" % (self.rank, above, self._step, seconds))

    def _come_together(self) -> None:
        """Compare where the members stand, bring them to the same step and share out what is left of it."""
        standings = [Standing(*item) for item in self.ring.gather(tuple(self._standing()))]
        verdict = judge_standing(standings)
        assert self.ring.formation is not None
        if verdict.problem:
            self._fall_back(verdict)
            return
        if self.rank in verdict.behind:
            self._apply()
        if verdict.fresh:
            self._hand_over(verdict)
        del self._reduced[verdict.reduced :]
        shares = self.ring.gather((self._shares, tuple(self._done)))
        done: Dict[int, AbstractSet[int]] = {}
        for member, (_, numbers) in zip(self.ring.formation.members, shares):
            done[member] = set(numbers)
        before: Shares = {}
        for said, _ in shares:
            for member, numbers in said.items():
                before.setdefault(member, numbers)
        self._shares = redistributed(self.micro_batches, done, before)
        if self._keeper is not None:
            with self.ring.collective():
                self._keeper.join(None, self.ring.formation.generation)

    def _standing(self) -> Standing:
        done = tuple(sorted(self._done))
        state = self.checksum() if self._step >= 0 else 0
        return Standing(self.rank, self._step, done, len(self._reduced), len(self._buckets), state)

    def checksum(self) -> int:
        """Of parameters and optimizer state, bit by bit."""
        total = 0
        for parameter in self._parameters:
            total = sum_of(parameter.data, total)
        state = self.optimizer.state_dict()
        for key in sorted(state["state"]):
            for name, value in sorted(state["state"][key].items()):
                total = sum_of(value, zlib.crc32(name.encode(), total))
        for group in state["param_groups"]:
            for name, value in sorted(group.items()):
                total = sum_of(value, zlib.crc32(name.encode(), total))
        return total

    def _hand_over(self, verdict: Verdict) -> None:
        """Members without a state take that of a living one: nothing is computed again for them."""
        members = {"model": self.model, "optimizer": self.optimizer, "sampler": self.sampler}
        state = {name: member.state_dict() for name, member in members.items()}
        content = encode(state)
        fresh = self.rank in verdict.fresh
        shapes = [(tuple(tensor.shape), tensor.dtype) for tensor in content.tensors]
        said = self.ring.gather(None if fresh else (content.skeleton, shapes, self._step))
        assert self.ring.formation is not None
        skeleton, shapes, _ = said[self.ring.formation.members.index(verdict.source)]
        if fresh:
            tensors = [torch.empty(shape, dtype=dtype, device=self._device) for shape, dtype in shapes]
        else:
            tensors = [tensor.to(self._device).contiguous() for tensor in content.tensors]
        self.ring.broadcast(tensors, verdict.source)
        if fresh:
            found = decode(content._replace(skeleton=skeleton, tensors=tensors))
            for name, member in members.items():
                member.load_state_dict(found[name])
            self._turn_to_next()
            self._shares = {}

    def _fall_back(self, verdict: Verdict) -> None:
        """Replicas that cannot be trusted are brought back to a checkpoint."""
        if self._keeper is None:
            raise RuntimeError("%s, and there are no checkpoints to go back to" % verdict.problem)
        assert self.ring.formation is not None
        if self.ring.place == 0:
            say("%s: going back to a checkpoint" % verdict.problem)
        with self.ring.collective():
            self._keeper.join(None, self.ring.formation.generation)
            found = self._keeper.restore()
        if found.step is None:
            raise RuntimeError("%s, and nothing was saved yet" % verdict.problem)
        self._turn_to_next()


def sum_of(value: Any, total: int) -> int:
    """A CRC-32 that goes on from `total`: of a tensor's bytes, of anything else as it is written."""
    if not isinstance(value, torch.Tensor):
        return zlib.crc32(repr(value).encode(), total)
    flat = value.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(memoryview(flat.view(torch.uint8).numpy()), total) if flat.numel() else total


def buckets_of(parameters: Sequence[torch.nn.Parameter], size: int) -> List[List[torch.nn.Parameter]]:
    """Parameters in the order in which their gradients come (the last first), cut where a bucket is full or the type changes."""
    buckets: List[List[torch.nn.Parameter]] = []
    filled = 0
    for parameter in reversed(parameters):
        amount = parameter.numel() * parameter.element_size()
        if not buckets or filled + amount > size or buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += amount
    return buckets
