"""A small GPT that trains exactly: float64, one thread, gradients reduced in one piece, so that a run is the same to the last bit
however often it was interrupted. Faults strike as FAULTS says (tests/faults.py).

python gpt.py CHECKPOINT STEPS RESULT      RESULT gets the SHA-256 of the final parameters

STEP_TIMES names a file that gets generation, step and time (seconds since the epoch) of every finished step.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import pitstop

sys.path.insert(0, str(Path(__file__).parents[2]))
from cli.stories.tiny_gpt import TinyGPT, batch_of, save
from tests.faults import Faults

STEP_SECONDS = 0.03
SAVE_EVERY = 3
STEP_TIMES = os.environ.get("STEP_TIMES", "")


def reduce_gradients(model: nn.Module, world: int) -> None:
    """One all-reduce of all gradients: the order of the sum depends on nothing but the number of ranks."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters]) / world
    dist.all_reduce(flat)
    at = 0
    for parameter in parameters:
        size = parameter.numel()
        parameter.grad.copy_(flat[at : at + size].view_as(parameter))
        at += size


def meet() -> None:
    """Form the group. Of torch 2.13, env:// under torchrun meets the addresses of the attempt before in the launcher's store."""
    environment = os.environ
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group("gloo")
        return
    store = dist.TCPStore(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), is_master=False)
    store = dist.PrefixStore(f"attempt{environment['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group("gloo", store=store, rank=int(environment["RANK"]), world_size=int(environment["WORLD_SIZE"]))


def main() -> None:
    checkpoint, steps, result = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(7)
    monitor, faults = pitstop.init(), Faults()
    meet()
    rank, world = dist.get_rank(), dist.get_world_size()
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
    print(f"rank {rank} of {world} trains from step {first}", flush=True)
    for step in range(first, steps):
        began = time.monotonic()
        with monitor.step(step):
            faults.begin()
            batch = batch_of(step, rank, world)
            loss = nn.functional.cross_entropy(model(batch["inputs"]).flatten(0, 1), batch["labels"].flatten())
            optimizer.zero_grad()
            loss.backward()
            faults.at(step)
            with monitor.sync():
                reduce_gradients(model, world)
            optimizer.step()
            if step % SAVE_EVERY == 0:
                with monitor.checkpoint():
                    if rank == 0:
                        save(checkpoint, step, model, optimizer)
        monitor.report(loss=loss.item())
        if rank == 0 and STEP_TIMES:
            with Path(STEP_TIMES).open("a") as target:
                target.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {step} {time.time()}\n")
        time.sleep(max(0.0, STEP_SECONDS - (time.monotonic() - began)))
    dist.barrier()
    if rank == 0:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        result.write_text(digest.hexdigest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
