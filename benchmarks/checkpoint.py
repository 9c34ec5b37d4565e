"""What a save costs training: `pitstop.Checkpointer` beside torch.save and DCP's async_save, in one run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["run"]

# With fewer of them, what was measured of the others before stays in the table.
SIZES_MB = tuple(int(size) for size in os.environ.get("CHECKPOINT_MB", "64 256 1024").split())
RESULTS = Path(__file__).with_name("results") / "checkpoint.md"
SAVES, STEPS_AFTER = 3, 6
STEP_WORK = 384


def contender(kind: str, state: Any, folder: Path) -> tuple[Callable[[int], Any], Callable[[Any], None]]:
    """(save, wait until durable) of one way to save."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    if kind == "torch.save":

        def save(step: int) -> None:
            with (folder / f"{step}.pt").open("wb") as target:
                torch.save(state, target)
                target.flush()
                os.fsync(target.fileno())

        return save, lambda _: None
    if kind == "DCP async_save, buffers reused":
        # Pinned memory and its asynchronous copies need a GPU.
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
        )
        stager = DefaultStager(options)
        return (
            lambda step: dcp.async_save(state, checkpoint_id=str(folder / str(step)), async_stager=stager),
            lambda future: future.result(),
        )
    if kind == "DCP async_save":
        return lambda step: dcp.async_save(state, checkpoint_id=str(folder / str(step))), lambda future: future.result()
    from pitstop.checkpoint.checkpointer import Checkpointer

    class Member:
        def state_dict(self) -> Any:
            return state

        def load_state_dict(self, loaded: Any) -> None:
            state.update(loaded)

    keeper = Checkpointer(str(folder), model=Member(), random=False, keep=1)
    return keeper.save, lambda _: None if keeper.flush() else sys.exit("nothing was flushed")


def measure(kind: str, megabytes: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each save: stall, time to durable, and steps before and after it."""
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    # As a model has it: many tensors of uneven sizes.
    pieces = [megabytes * (1 << 18) // 16] * 15
    pieces.append(megabytes * (1 << 18) - sum(pieces))
    state = {f"layer{number}": torch.randn(count) for number, count in enumerate(pieces)}
    left, right = torch.randn(STEP_WORK, STEP_WORK), torch.randn(STEP_WORK, STEP_WORK)

    def step() -> float:
        began = time.perf_counter()
        for _ in range(2):
            left @ right
        return time.perf_counter() - began

    save, wait = contender(kind, state, folder)
    found: dict[str, list[float]] = {"first": [], "stall": [], "durable": [], "before": [], "after": []}
    for number in range(SAVES + 1):
        before = [step() for _ in range(STEPS_AFTER)]
        began = time.perf_counter()
        handle = save(number)
        stall = time.perf_counter() - began
        after = [step() for _ in range(STEPS_AFTER)]
        wait(handle)
        durable = time.perf_counter() - began
        # The first one pays for what each of them needs once: memory, threads, modules.
        if not number:
            found["first"].append(stall)
        else:
            for name, value in (("stall", [stall]), ("durable", [durable]), ("before", before), ("after", after)):
                found[name] += value
        for old in folder.glob("*" if kind != "pitstop" else "nothing"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    return found


def measured(kind: str, megabytes: int) -> dict[str, list[float]]:
    """In a process of its own, with a folder of its own on the same disk."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.checkpoint", kind, str(megabytes), folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{kind}: {done.stderr[-500:]}")
        return dict(json.loads(done.stdout.splitlines()[-1]))


def run() -> str:
    kinds = ("torch.save", "DCP async_save", "DCP async_save, buffers reused", "pitstop")
    lines = [
        "| state | how | stall, s | each | the first, s | beside torch.save | beside DCP | steps after : before | durable, s |",
        "|---:|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    measured_before = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    before = [line for line in measured_before if re.match(r"\| \d+ MB", line) and int(line.split()[1]) not in SIZES_MB]
    rows = list(before)
    for size in SIZES_MB:
        found = {kind: measured(kind, size) for kind in kinds}
        stalls = {kind: median(values["stall"]) for kind, values in found.items()}
        for kind, values in found.items():
            slower = median(values["after"]) / median(values["before"])
            each = " ".join(f"{value:.3f}" for value in values["stall"])
            rows.append(
                f"| {size} MB | {kind} | {stalls[kind]:.3f} | {each} | {values['first'][0]:.3f} "
                f"| {stalls[kind] / stalls['torch.save']:.2f} x "
                f"| {stalls[kind] / stalls['DCP async_save']:.2f} x | {slower:.2f} x | {median(values['durable']):.2f} |"
            )
    rows.sort(key=lambda line: int(line.split()[1]))
    load = f"Medians of {SAVES} saves each; load of the machine at the end {os.getloadavg()[0]:.1f}."
    asked = "Required: a stall not above that of DCP's async_save. torch.save with fsync; ours with checksums of every byte."
    return "# What a save costs\n\n" + asked + "\n\n" + "\n".join([*lines, *rows]) + "\n\n" + load


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))))
    # Its host process ends by itself once this one is gone.
    os._exit(0)
