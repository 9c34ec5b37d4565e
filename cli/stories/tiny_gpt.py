"""A real, small training job: a character GPT under DistributedDataParallel on gloo, which resumes from its checkpoint.

Runs under the job's own interpreter and knows nothing of Pitstop but `import pitstop`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pitstop

TEXT = "the stop is short, the race is long; " * 64
VOCABULARY = sorted(set(TEXT))
CONTEXT, WIDTH, BATCH = 32, 64, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        normed = self.norm(hidden)
        hidden = hidden + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return hidden + self.feed_forward(hidden)


class TinyGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(VOCABULARY), WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, len(VOCABULARY))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        hidden = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            hidden = block(hidden, mask)
        return self.head(hidden)


def batch_of(step: int, rank: int, world: int) -> dict[str, torch.Tensor]:
    """The batch of one step and rank, the same whenever it is asked for."""
    codes = torch.tensor([VOCABULARY.index(letter) for letter in TEXT])
    generator = torch.Generator().manual_seed(step * world + rank)
    starts = torch.randint(len(codes) - CONTEXT - 1, (BATCH,), generator=generator)
    windows = torch.stack([codes[start : start + CONTEXT + 1] for start in starts])
    return {"inputs": windows[:, :-1], "labels": windows[:, 1:]}


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Publish a checkpoint under its final name only once it is whole on disk."""
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        os.fsync(file.fileno())
    unfinished.replace(path)


def all_see(path: Path) -> bool:
    """Whether rank 0 sees a file at `path`: every rank gets the same answer at the same step."""
    seen = torch.tensor([float(path.exists())])
    dist.broadcast(seen, 0)
    return bool(seen.item())


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--until", type=Path, help="train until this file is there, however many steps that takes")
    options.add_argument("--checkpoint", type=Path, required=True)
    options.add_argument("--step-seconds", type=float, default=0.05, help="the least time that a step takes")
    options.add_argument("--bad-record-at", type=int, help="the step whose batch lacks its labels, every time")
    arguments = options.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(7)
    monitor = pitstop.init()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = 0
    if arguments.checkpoint.exists():
        state = torch.load(arguments.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
    print(f"rank {rank} of {world}: training from step {first}", flush=True)
    replica = DistributedDataParallel(model)
    for step in itertools.count(first) if arguments.until else range(first, arguments.steps):
        began = time.monotonic()
        with monitor.step(step):
            batch = batch_of(step, rank, world)
            if step == arguments.bad_record_at and rank == world - 1:
                del batch["labels"]
            logits = replica(batch["inputs"])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.report(loss=loss.item())
        if step % 5 == 0:
            # A node that comes back is taken in when a checkpoint has just been finished.
            with monitor.checkpoint():
                if rank == 0:
                    save(arguments.checkpoint, step, model, optimizer)
        if step % 10 == 0:
            print(f"iteration {step:8d}/{arguments.steps:8d} | lm loss: {loss.item():.6E} |", flush=True)
        if arguments.until and all_see(arguments.until):
            break
        time.sleep(max(0.0, arguments.step_seconds - (time.monotonic() - began)))
    # To let go of the last tensor Gloo's thread needs the GIL, with which the end of the group would wait for that thread.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
