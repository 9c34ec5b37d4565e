"""What ranks do in the tests of checkpoints. Their state at step s is s everywhere, so that a wrong restore shows."""

from __future__ import annotations

import datetime
import json
import random
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pitstop.checkpoint.checkpointer import Checkpointer, NothingRestorable

__all__ = ["Member", "join_group", "restore", "save_for_ever", "save_steps"]


class Member:
    """A state whose value says of which step and rank it is."""

    def __init__(self, elements: int, rank: int = 0) -> None:
        self.value = torch.zeros(elements, dtype=torch.float64)
        self.rank = rank

    def at(self, step: int) -> None:
        self.value.fill_(step + self.rank / 1000)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "note": str(float(self.value[0]))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value.copy_(state["value"])
        assert state["note"] == str(float(self.value[0])), "structure and tensors are of different steps"


def join_group(rank: int, world: int, meeting: str) -> None:
    store = dist.FileStore(meeting, world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=120))


def checkpointer(folder: str, elements: int, rank: int, **options: Any) -> tuple[Checkpointer, Member, Member]:
    model, own = Member(elements), Member(8, rank)
    return Checkpointer(folder, model=model, mine=own, own=("mine",), **options), model, own


def save_steps(folder: str, steps: list[int], elements: int, rank: int, world: int, meeting: str, flush: bool = True) -> None:
    if world > 1:
        join_group(rank, world, meeting)
    keeper, model, own = checkpointer(folder, elements, rank, keep=10)
    for step in steps:
        random.seed(step)
        model.at(step)
        own.at(step)
        keeper.save(step)
        if flush:
            assert keeper.flush()
    if world > 1:
        dist.barrier()
    Path(f"{meeting}.saved{rank}").write_text(json.dumps(keeper.status()))


def save_for_ever(folder: str, elements: int, progress: str) -> None:
    keeper, model, own = checkpointer(folder, elements, 0)
    keeper.restore()
    step = int(model.value[0])
    while True:
        step += 1
        model.at(step)
        own.at(step)
        keeper.save(step)
        # After the save: this step can never be lost any more.
        Path(progress).write_text(str(step))


def restore(folder: str, elements: int, rank: int, world: int, meeting: str, result: str, step: int | None = None) -> None:
    if world > 1:
        join_group(rank, world, meeting)
    keeper, model, own = checkpointer(folder, elements, rank)
    try:
        found = keeper.restore(step)
    except NothingRestorable as problem:
        Path(result).write_text(json.dumps({"refused": str(problem)}))
        return
    values = [sorted(set(member.value.tolist())) for member in (model, own)]
    random_number = random.random()
    document = {**found._asdict(), "values": values, "random": random_number, "peer": keeper.peer.why}
    Path(result).write_text(json.dumps(document))
