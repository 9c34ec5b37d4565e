"""Real training by real ranks, with a ledger in its state: the gradient itself counts each sample that a step was made of."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch

from pitstop.elastic.group import Lost
from pitstop.elastic.training import UNKNOWN_SECONDS, Elastic
from pitstop.sampler import Sampler

__all__ = ["SAMPLES", "Net", "train"]

SAMPLES, BATCH, MICRO, FEATURES = 96, 24, 12, 24


class Net(torch.nn.Module):
    """Two ledgers, so that both the first and the last bucket to be reduced tell which samples went into it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))
        self.body = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 64), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1)
        ).to(dtype)
        self.last = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))


class InHalves(torch.optim.SGD):
    """Takes its step group by group; `between` is called when the first one has it."""

    def step(self, closure: Any = None) -> Any:
        groups = self.param_groups
        for place, group in enumerate(groups):
            self.param_groups = [group]
            super().step(closure)
            if place == 0:
                self.between()
        self.param_groups = groups

    def between(self) -> None:
        return None


class Doomed(Elastic):
    """Ends by signal 9 at a given point of a given step, or at any moment.

    `patient`: a peer that a busy machine keeps from its work is not taken for one that hangs. The death of one is told at once.
    """

    patient = True

    def _threshold(self) -> float:
        return UNKNOWN_SECONDS if self.patient else super()._threshold()

    def doom(self, step: int, where: str, number: int) -> None:
        self.fate = step, where, number

    def strike(self, where: str, number: int = 0) -> None:
        if getattr(self, "fate", None) == (self._step, where, number):
            if where == "bucket":
                # Inside the collective: the others are in it, or come to it.
                threading.Timer(0.0003, os.kill, (os.getpid(), signal.SIGKILL)).start()
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    def _compute(self) -> None:
        if getattr(self, "fate", None) == (self._step, "rot", 0) and not self._done:
            # A bit that flipped in memory, once: nobody notices while training goes on.
            del self.fate
            with torch.no_grad():
                self._parameters[1].view(-1)[0] += 1e-9
        super()._compute()

    def _flat(self, number: int) -> torch.Tensor:
        flat = super()._flat(number)
        self.strike("bucket", number)
        if getattr(self, "fate", None) == (self._step, "left", number):
            # As where the transport tells one member of a loss before the others, who wait for this one.
            del self.fate
            raise Lost("alone")
        return flat

    def _agree(self) -> None:
        self.strike("reduced")
        super()._agree()

    def _apply(self) -> None:
        self.strike("agreed")
        super()._apply()


def train(result: str, steps: int, seed: int, fate: tuple[Any, ...] | None, options: dict[str, Any]) -> None:
    """`fate`: ("after", seconds) or (step, where, number). The result is written only by a rank that gets to the end.

    Of the options, `pause` is the seconds that a micro-batch takes at least, until there is a file at `hurry`.
    """
    dtype = getattr(torch, options.get("dtype", "float64"))
    torch.manual_seed(7)
    inputs = torch.randn(SAMPLES, FEATURES, dtype=dtype)
    targets = (inputs[:, :4].sum(1, keepdim=True) + 0.1 * torch.randn(SAMPLES, 1, dtype=dtype)).to(dtype)
    net = Net(dtype)
    ledgers = [net.first, net.last]
    optimizer = InHalves(
        [{"params": net.body.parameters(), "lr": 0.05, "momentum": 0.9}, {"params": ledgers, "lr": 1.0, "momentum": 0.0}]
    )
    sampler = Sampler(SAMPLES, BATCH, seed=seed)
    pause, hurry = options.get("pause", 0.0), Path(options.get("hurry", "/nowhere"))

    def loss_of(ids: list[int]) -> torch.Tensor:
        if isinstance(training, Doomed):
            training.strike("forward", len(training._done))
        rows = torch.tensor(ids)
        time.sleep(0.0 if hurry.exists() else pause)
        loss = torch.nn.functional.mse_loss(net.body(inputs[rows]), targets[rows])
        # Each sample adds exactly one to its place in both ledgers' gradient.
        counted = MICRO * (net.first[rows].sum() + net.last[rows].sum())
        return loss + counted - counted.detach()

    training = Doomed(
        net,
        optimizer,
        sampler,
        loss_of,
        micro_batches=MICRO,
        bucket_bytes=2048,
        checkpoints=options.get("checkpoints"),
        save_every=options.get("save_every", 100),
    )
    training.patient = options.get("patient", True)
    optimizer.between = lambda: training.strike("optimizer")  # type: ignore[method-assign]
    # The last of the model's gradients to come: that of the first layer.
    next(net.body.parameters()).register_hook(lambda _: training.strike("backward", len(training._done)))
    if fate is not None and fate[0] == "after":
        threading.Timer(float(fate[1]), os.kill, (os.getpid(), fate[2] if len(fate) > 2 else signal.SIGKILL)).start()
    elif fate is not None:
        training.doom(*fate)
    moments, losses = [], []
    if options.get("progress"):
        Path(f"{options['progress']}{training.rank}").write_text("started")
    for _, loss in training.steps(steps):
        moments.append(time.monotonic())
        losses.append(loss)
        if options.get("progress") and len(losses) == 6:
            Path(f"{options['progress']}{training.rank}.5").write_text("reached")
    document = {
        "rank": training.rank,
        "first": net.first.tolist(),
        "last": net.last.tolist(),
        "body": [value for parameter in net.body.parameters() for value in parameter.double().reshape(-1).tolist()],
        "checksum": training.checksum(),
        "reformed": training.reformed,
        "moments": moments,
        "losses": losses,
    }
    Path(f"{result}.new").write_text(json.dumps(document))
    Path(f"{result}.new").rename(result)


def ledger(steps: int, seed: int) -> list[float]:
    """What both ledgers say after `steps` steps in which every batch was trained on exactly once."""
    counts = [0.0] * SAMPLES
    for number in range(steps):
        for sample in Sampler(SAMPLES, BATCH, seed=seed).ids(number):
            counts[sample] -= 1.0
    return counts
