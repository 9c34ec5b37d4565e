"""Ranks that count together, each step one all-reduce, and give one another up after a while.

A ledger tells which group did what: a line of generation, store and step for every step that a group finished.
python groups.py FINISH LEDGER CHECKPOINT SECONDS      they end once FINISH is there; SECONDS: how long a rank waits for its peers
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import pitstop

STEP_SECONDS = 0.05


def main() -> None:
    finish, ledger, checkpoint = (Path(word) for word in sys.argv[1:4])
    torch.set_num_threads(1)
    monitor = pitstop.init()
    dist.init_process_group("gloo")
    patience = timedelta(seconds=float(sys.argv[4]))
    rank, environment = dist.get_rank(), os.environ
    group = f"{environment['TORCHELASTIC_RESTART_COUNT']} {environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
    step, ended = int(checkpoint.read_text()) + 1 if checkpoint.exists() else 0, False
    while not ended:
        with monitor.step(step):
            ends = torch.tensor([float(finish.exists())])
            with monitor.sync():
                dist.all_reduce(ends, async_op=True).wait(patience)
            ended = ends.item() == dist.get_world_size()
            with monitor.checkpoint():
                if rank == 0:
                    unfinished = checkpoint.with_name(f"{checkpoint.name}.{os.getpid()}")
                    unfinished.write_text(str(step))
                    unfinished.replace(checkpoint)
        if rank == 0:
            with ledger.open("a") as target:
                target.write(f"{group} {step}\n")
        step += 1
        time.sleep(STEP_SECONDS)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
