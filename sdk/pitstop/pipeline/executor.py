"""The loop of one worker: run the plan, sum the stage's gradients, step, go on; and re-form when a worker dies or comes back.

Staggered: a worker steps as soon as its stage is summed and goes on at once. Whether every stage's gradients were finite is told
through the store and looked at one iteration later; where one was not, all take that step back exactly and run the present
iteration again. No stage is ever more than one step ahead, as the next iteration's F of a micro-batch passes through all stages.
"""

import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Protocol

import torch
import torch.distributed as dist

from pitstop.monitor import init
from pitstop.pipeline.meeting import Formed, Meeting, Published
from pitstop.pipeline.membership import Membership
from pitstop.pipeline.plan import PipelinePlan, Worker
from pitstop.pipeline.saved import SavedStages
from pitstop.pipeline.stage import Stage
from pitstop.pipeline.state import StageState
from pitstop.pipeline.transport import Transport

__all__ = ["Executor", "Task"]

POLL_SECONDS = 0.002
PATIENCE = 5.0


class Task(Protocol):
    """The model and its data. Loss is summed over micro-batches: divide it by their number to have a mean."""

    def stage(self, stage: int) -> torch.nn.Module: ...

    def optimizer(self, module: torch.nn.Module) -> torch.optim.Optimizer: ...

    def inputs(self, iteration: int, batch: int) -> torch.Tensor: ...

    def loss(self, output: torch.Tensor, iteration: int, batch: int) -> torch.Tensor: ...

    def activation(self) -> torch.Tensor:
        """An empty tensor of the shape, type and device of what passes between stages."""
        ...


class Changed(Exception):
    """A newer generation holds."""


def _is_lost(error: RuntimeError) -> bool:
    """Whether it says that a peer, or the link to it, is gone."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower() or "connection" in str(error).lower()


def _nothing(kind: str, began: float) -> None:
    return None


class Executor:
    """One worker's part. `store` and `member`: where generations are published, and this process's name in every membership; or
    `plans`, a folder of `pitstop pipeline plans`, for the ranks of `pitstop run`: its agent says who is left. `checkpoints`: a
    folder that all workers share, saved to every `save_every` iterations, and begun from where nobody has anything yet.

    `after` is called after each operation with its kind and when it began (time.monotonic); the kind of a B that carries its W is
    "BW". `losses` has the loss of each iteration on workers of the last stage, by micro-batch.
    """

    def __init__(
        self,
        task: Task,
        store: Any = None,
        member: str = "",
        backend: str = "gloo",
        timeout: float = 60.0,
        after: Callable[[str, float], None] = _nothing,
        plans: Optional[str] = None,
        checkpoints: Optional[str] = None,
        save_every: int = 100,
    ) -> None:
        self.task, self.backend, self.timeout, self.after = task, backend, timeout, after
        self.meeting: Meeting = Published(store, member) if plans is None else Formed(plans)
        self.member = self.meeting.member
        self.losses: Dict[int, Dict[int, float]] = {}
        self.peaks: Dict[int, int] = {}
        self.ends: Dict[int, float] = {}
        self.generations: Dict[int, int] = {}
        self.copies = 0
        self.skipped: List[int] = []
        self.state: Optional[StageState] = None
        self._membership: Optional[Membership] = None
        self.worker: Worker = (-1, -1)
        self._holds: Optional[Worker] = None
        self._saved = None if checkpoints is None else SavedStages(checkpoints)
        self._save_every = save_every
        self._monitor = init()
        self._seen = self._next = self.meeting.first
        self._settled = -1

    @property
    def store(self) -> Any:
        return self.meeting.store

    def run(self, iterations: int) -> None:
        """Until `iterations` are done, through every change of membership. Raises TimeoutError where nobody re-forms in time."""
        while True:
            with self._monitor.sync():
                links = self._join()
            if links is None:
                continue
            self.meeting.formed()
            try:
                while self._state().done < iterations:
                    with self._monitor.step(self._state().done):
                        self._iterate(links)
                self._settle(self._state().done - 1)
                if self._state().done == iterations:
                    return
            except Changed:
                pass
            except RuntimeError as error:
                # A peer is gone: what this iteration did is void. The next generation says who goes on.
                if not _is_lost(error):
                    raise
            finally:
                links.close()

    def _state(self) -> StageState:
        assert self.state is not None
        return self.state

    def _join(self) -> Optional[Transport]:
        """Take part in the newest generation; None where it broke up while it formed."""
        membership = self.meeting.next(self._seen, self._holds, self.timeout)
        self._seen = membership.generation
        worker = membership.workers[self.member]
        self._holds = None if self.member in membership.sources else worker
        if self.state is None or worker[1] != self.worker[1]:
            module = self.task.stage(worker[1])
            self.stage = Stage(module)
            self.state = StageState(module, self.task.optimizer(module))
            self._begin_from_checkpoint(membership, worker[1])
        self._membership, self.worker = membership, worker
        links = None
        try:
            if not self._all_form(membership):
                return None
            rooms = dist.PrefixStore(f"pitstop/pipeline/links/{membership.generation}", self.store)
            dist.init_process_group(
                self.backend, store=rooms, rank=membership.rank(self.member), world_size=len(membership.workers)
            )
            links = Transport(membership, worker, self.task.activation())
            self._agree(membership)
            self._holds = worker
            return links
        except RuntimeError as error:
            if not _is_lost(error):
                raise
            if links is not None:
                links.close()
            elif dist.is_initialized():
                dist.destroy_process_group()
            return None

    def _begin_from_checkpoint(self, membership: Membership, stage: int) -> None:
        """The state of a worker that has none and copies none: the first of its job."""
        if self._saved is None or self.member in membership.sources:
            return
        done = self._saved.newest(membership.plan.stages)
        if done is not None:
            self._state().unpack(self._saved.load(stage, done))

    def _save(self) -> None:
        """What all have agreed on, by the first worker of each stage."""
        state, membership, stage = self._state(), self._membership, self.worker[1]
        if self._saved is None or membership is None or state.done == 0 or state.done % self._save_every:
            return
        with self._monitor.checkpoint():
            if membership.rank(self.member) == membership.peers(stage)[0]:
                self._saved.save(stage, state.done, state.pack())

    def _all_form(self, membership: Membership) -> bool:
        """Wait until every member is there; False where a newer generation came first. The first word holds, so that all hear the
        same: who had begun to connect would wait for one who went on to the newer generation, or died. Raises TimeoutError."""
        room = f"pitstop/pipeline/forming/{membership.generation}"
        self.store.add(f"{room}/here", 1)
        deadline = time.monotonic() + self.timeout
        while not self.store.check([f"{room}/word"]):
            if self.store.add(f"{room}/here", 0) >= len(membership.workers):
                self.store.compare_set(f"{room}/word", "", "go")
            elif self.meeting.newest() > membership.generation:
                self.store.compare_set(f"{room}/word", "", "void")
            elif time.monotonic() > deadline:
                raise TimeoutError(f"not all members of generation {membership.generation} came within {self.timeout} s")
            else:
                time.sleep(POLL_SECONDS)
        return bool(self.store.get(f"{room}/word") == b"go")

    def _agree(self, membership: Membership) -> None:
        """Bring every stage to the last iteration that all have done, then copy to those who have nothing."""
        state = self._state()
        source = membership.sources.get(self.member)
        told: List[Any] = [None] * len(membership.workers)
        dist.all_gather_object(told, None if source is not None else (state.done, state.doubtful))
        known = [item for item in told if item is not None]
        done = min(item[0] for item in known)
        if source is None:
            if state.done > done:
                state.back()
            elif state.reversible and any(doubtful for count, doubtful in known if count == done):
                state.skip()
                self.skipped.append(done - 1)
            state.doubtful = False
        members = list(membership.workers)
        mine = state.pack() if self.member in membership.sources.values() else None
        sizes: List[Any] = [None] * len(members)
        dist.all_gather_object(sizes, None if mine is None else mine.numel())
        device = self.task.activation().device
        for target, origin in membership.sources.items():
            if origin == self.member and mine is not None:
                dist.send(mine.to(device), members.index(target))
            elif target == self.member:
                content = torch.empty(sizes[members.index(origin)], dtype=torch.uint8, device=device)
                dist.recv(content, members.index(origin))
                state.unpack(content)
                self.copies += 1
        self._settled = state.done - 1
        self._next = membership.generation

    def _iterate(self, links: Transport) -> None:
        state, membership = self._state(), self._membership
        assert membership is not None
        iteration = state.done
        self._operations(links, membership.plan, iteration)
        finite = self._sum_gradients(links)
        if self._settle(iteration - 1):
            # This iteration saw the parameters of a step that is taken back: run it again.
            return
        self._save()
        state.step(finite)
        self.peaks[iteration] = self.stage.peak
        self.ends[iteration] = time.monotonic()
        self.generations[iteration] = membership.generation
        self._tell(iteration, finite)
        if not membership.plan.staggered or self._next > membership.generation:
            self._settle(iteration)
        if self._next > membership.generation:
            self._await(f"{self._room(iteration)}/left", 1)
            raise Changed

    def _operations(self, links: Transport, plan: PipelinePlan, iteration: int) -> None:
        stage, last, coupled = self.worker[1], plan.stages - 1, plan.coupled
        self.stage.begin()
        links.begin()
        losses: Dict[int, torch.Tensor] = {}
        for kind, batch in plan.orders.get(self.worker, ()):
            if kind == "F":
                given = self.task.inputs(iteration, batch) if stage == 0 else links.receive(("F", batch))
                began = time.monotonic()
                loss = None
                if stage == last:
                    loss = partial(self.task.loss, iteration=iteration, batch=batch)
                output = self.stage.forward(batch, given, loss)
                self.after(kind, began)
                if stage == last:
                    losses[batch] = output
                else:
                    links.send(("F", batch), output)
            elif kind == "B":
                gradient = None if stage == last else links.receive(("B", batch))
                began = time.monotonic()
                back = self.stage.backward(batch, gradient)
                if coupled:
                    self.stage.weight(batch)
                self.after("BW" if coupled else kind, began)
                if stage and back is not None:
                    links.send(("B", batch), back)
            else:
                began = time.monotonic()
                self.stage.weight(batch)
                self.after(kind, began)
        links.end()
        self.losses[iteration] = {batch: float(value) for batch, value in losses.items()}

    def _sum_gradients(self, links: Transport) -> bool:
        """Sum over the peers of the stage, a tensor a type; whether all of them are finite."""
        finite = True
        by_type: Dict[torch.dtype, List[torch.Tensor]] = {}
        for parameter in self.stage.parameters:
            if parameter.grad is not None:
                by_type.setdefault(parameter.dtype, []).append(parameter.grad)
        for gradients in by_type.values():
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            links.sum_over_stage(flat)
            finite = finite and bool(torch.isfinite(flat).all())
            for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
                gradient.copy_(part.view_as(gradient))
        return finite

    def _room(self, iteration: int) -> str:
        return f"pitstop/pipeline/verdict/{self._seen}/{iteration}"

    def _tell(self, iteration: int, finite: bool) -> None:
        """Say whether this worker's gradients were finite. The first rank says, for all, which generation is the newest."""
        room = self._room(iteration)
        if self._membership is not None and self._membership.rank(self.member) == 0:
            self.store.set(f"{room}/next", str(self.meeting.newest()))
            old = self._room(iteration - 2)
            for key in ("next", "bad", "told"):
                self.store.delete_key(f"{old}/{key}")
        self.store.add(f"{room}/bad", 0 if finite else 1)
        self.store.add(f"{room}/told", 1)

    def _settle(self, iteration: int) -> bool:
        """Hear what all said of `iteration`, once; true where its step was taken back. Raises Changed where not all will say."""
        if iteration <= self._settled:
            return False
        room = self._room(iteration)
        self._await(f"{room}/told", 0)
        self._settled = iteration
        self._next = int(self.store.get(f"{room}/next"))
        if self.store.add(f"{room}/bad", 0) == 0:
            self._state().doubtful = False
            return False
        self._state().skip()
        self.skipped.append(iteration)
        return True

    def _await(self, key: str, own: int) -> None:
        """Wait until every member has added to `key`; where a newer generation came meanwhile, only for `PATIENCE` seconds."""
        assert self._membership is not None
        everyone = len(self._membership.workers)
        self.store.add(key, own)
        changed = None
        while self.store.add(key, 0) < everyone:
            if changed is None and self.meeting.newest() > self._seen:
                changed = time.monotonic()
            if changed is not None and time.monotonic() - changed > PATIENCE:
                raise Changed
            time.sleep(POLL_SECONDS)
