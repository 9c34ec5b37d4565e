"""A rank of torchrun that trains by the plan for as many replicas as there are left, and writes down when iterations end.

Arguments: folder (plan-<ranks>.json; times-<rank>.txt is written), seconds of an operation, iterations. Nothing is loaded or
stored between starts: a restart costs here what it costs without checkpoints to write, to read, or to go back to.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from pitstop.pipeline import Executor, publish
from tests.sdk.pipeline_job import make_task, pad


def main(folder: Path, seconds: float, iterations: int) -> None:
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    agents = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store = dist.PrefixStore(f"ranks/{ranks}", agents)
    document = json.loads((folder / f"plan-{ranks}.json").read_text())
    stages = 1 + max(row[1] for row in document["ops"])
    if rank == 0:
        publish(store, 1, document, {f"r{index}": divmod(index, stages) for index in range(ranks)})
    total = 1 + max(row[3] for row in document["ops"])
    with (folder / f"times-{rank}.txt").open("a") as times:
        written = 0

        def after(kind: str, began: float) -> None:
            nonlocal written
            pad(seconds, kind, began)
            # Nobody tells the ranks of torchrun of another generation: one that lost its peers is to end at once.
            executor.timeout = 0.0
            for iteration in range(written, len(executor.ends)):
                print(ranks, executor.ends[iteration], file=times, flush=True)
            written = len(executor.ends)

        executor = Executor(make_task(stages, total), store, f"r{rank}", timeout=120, after=after)
        executor.run(iterations)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
