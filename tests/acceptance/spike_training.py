"""A small regression that is trained for real, with batches in its data that ruin it; and the same without them, to compare."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

import pitstop

SAMPLES, BATCH, BAD = 32_000, 16, range(60, 62)
# After the batches that are skipped it goes on for this many.
AFTER = 30


def train(sampler: pitstop.Sampler, checkpoints: str | None = None, pause: float = 0.0) -> dict[str, object]:
    """Train until some batches were skipped and AFTER more are done. What is left in the end, for anybody to compare."""
    torch.manual_seed(1)
    inputs = torch.randn(SAMPLES, 16, dtype=torch.float64)
    targets = torch.tanh(inputs[:, :4]).sum(1, keepdim=True)
    bad = torch.tensor([sample for number in BAD for sample in sampler.ids(number)])
    targets[bad] *= 300.0
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    monitor = pitstop.init()
    keeper = None
    if checkpoints is not None:
        keeper = pitstop.Checkpointer(checkpoints, model=model, optimizer=optimizer, sampler=sampler, keep=10_000)
        print("from", keeper.restore().step, flush=True)
    loss = torch.zeros(())
    for number, ids in sampler:
        if sampler.skip and number >= sampler.skip[-1][1] + AFTER:
            break
        with monitor.step(number):
            rows = torch.tensor(ids)
            loss = torch.nn.functional.mse_loss(model(inputs[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # Slowest where it goes wrong: the agent must have seen the last good step, and the first bad one.
            time.sleep(pause * (2.5 if BAD.start - 2 <= number <= BAD.stop else 1))
        monitor.report(loss=loss.item())
        if keeper is not None and (number + 1) % 5 == 0:
            sampler.position = number + 1
            keeper.save(number + 1)
    parameters = [value for parameter in model.parameters() for value in parameter.reshape(-1).tolist()]
    return {"loss": loss.item(), "skip": sampler.skip, "parameters": parameters}


def main() -> None:
    found = train(pitstop.Sampler(SAMPLES, BATCH, seed=4), sys.argv[1], pause=0.1)
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
