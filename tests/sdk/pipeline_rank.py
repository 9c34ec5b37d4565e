"""A rank that trains by the plan for as many replicas as there are, and writes down when iterations end: of torchrun, or of
`pitstop run`, whose ranks find the set of plans in FOLDER/plans.

Arguments: folder (plan-<ranks>.json for torchrun; times-<rank>.txt is written), seconds of an operation, iterations. Nothing is
loaded or stored between starts: a restart costs here what it costs without checkpoints to write, to read, or to go back to.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist

from pitstop import protocol
from pitstop.pipeline import Executor, publish
from pitstop.pipeline.plan import PipelinePlan
from pitstop.pipeline.plan_set import PlanSet
from tests.sdk.pipeline_job import make_task, pad


def main(folder: Path, seconds: float, iterations: int) -> None:
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    agent = protocol.FORMATION in os.environ
    document = PlanSet(str(folder / "plans")).document(0) if agent else json.loads((folder / f"plan-{ranks}.json").read_text())
    plan = PipelinePlan.from_document(document)
    written: dict[int, float] = {}
    with (folder / f"times-{rank}.txt").open("a") as times:

        def after(kind: str, began: float) -> None:
            pad(seconds, kind, began)
            if not agent:
                # Nobody tells the ranks of torchrun of another generation: one that loses its peers is to end at once.
                executor.timeout = 0.0
            # An iteration that was taken back ends twice: the last word holds.
            for iteration in sorted(executor.ends)[-2:]:
                if written.get(iteration) != executor.ends[iteration]:
                    written[iteration] = executor.ends[iteration]
                    print(iteration if agent else ranks, executor.ends[iteration], file=times, flush=True)

        task = make_task(plan.stages, plan.total)
        if agent:
            executor = Executor(task, plans=str(folder / "plans"), timeout=120, after=after)
        else:
            agents = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
            store = dist.PrefixStore(f"ranks/{ranks}", agents)
            if rank == 0:
                publish(store, 1, document, {f"r{index}": divmod(index, plan.stages) for index in range(ranks)})
            executor = Executor(task, store, f"r{rank}", timeout=120, after=after)
        executor.run(iterations)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
