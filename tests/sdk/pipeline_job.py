"""A small model in stages, and processes that train it by a pipeline plan; the same in one process, as the reference."""

import multiprocessing
import time
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

WIDTH, ROWS = 16, 4


def make_task(stages: int, total: int, poison: tuple[int, int] | None = None) -> Any:
    """`poison`: the (iteration, micro-batch) whose input is not finite."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.wide = nn.Linear(WIDTH, 2 * WIDTH)
            self.narrow = nn.Linear(2 * WIDTH, WIDTH, bias=False)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden + self.narrow(torch.tanh(self.wide(self.norm(hidden))))

    class Task:
        def stage(self, stage: int) -> nn.Module:
            torch.manual_seed(100 + stage)
            return nn.Sequential(Block(), Block()).double()

        def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.AdamW(module.parameters(), lr=1e-2)

        def inputs(self, iteration: int, batch: int) -> torch.Tensor:
            generator = torch.Generator().manual_seed(iteration * total + batch)
            given = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator)
            return given * float("nan") if (iteration, batch) == poison else given

        def loss(self, output: torch.Tensor, iteration: int, batch: int) -> torch.Tensor:
            target = self.inputs(iteration, batch).nan_to_num().roll(1, dims=1)
            return ((output - target) ** 2).mean() / total

        def activation(self) -> torch.Tensor:
            return torch.empty(ROWS, WIDTH, dtype=torch.float64)

    return Task()


class Reference:
    """The same training without a pipeline: whole model, all micro-batches one after another."""

    def __init__(self, stages: int, total: int, poison: tuple[int, int] | None = None) -> None:
        import torch

        torch.set_num_threads(1)
        self.task = make_task(stages, total, poison)
        self.total = total
        self.modules = [self.task.stage(stage) for stage in range(stages)]
        self.optimizers = [self.task.optimizer(module) for module in self.modules]
        self.model = torch.nn.Sequential(*self.modules)
        self.losses: list[float] = []

    def run(self, iterations: int) -> None:
        import torch

        for iteration in range(iterations):
            self.model.zero_grad()
            losses = []
            for batch in range(self.total):
                loss = self.task.loss(self.model(self.task.inputs(iteration, batch)), iteration, batch)
                loss.backward()
                losses.append(float(loss.detach()))
            self.losses.append(sum(losses))
            if all(torch.isfinite(parameter.grad).all() for parameter in self.model.parameters()):
                for optimizer in self.optimizers:
                    optimizer.step()


def pad(seconds: float, kind: str, began: float) -> None:
    """Make an operation last `seconds` a kind: what a plan says of its time then holds, however fast the machine is."""
    time.sleep(max(0.0, began + len(kind) * seconds - time.monotonic()))


def train(member: str, port: int, shape: tuple[int, int], iterations: int, out: str, options: dict[str, Any]) -> None:
    """One worker process: its record goes to OUT/member.pt."""
    import torch
    import torch.distributed as dist

    from pitstop.pipeline import Executor
    from pitstop.pipeline.membership import newest_generation

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=300))
    seconds = options.get("seconds", 0.0)

    # (member, iteration) where it hangs in the middle for good, and the iteration that waits for a generation.
    hangs: list[tuple[str, int]] = options.get("hangs", [])
    waits: dict[int, int] = options.get("waits", {})

    def padded(kind: str, began: float) -> None:
        pad(seconds, kind, began)
        assert executor.state is not None
        iteration = executor.state.done
        if kind != "F" and (member, iteration) in hangs:
            store.set(f"hangs/{member}", "yes")
            time.sleep(600)
        while newest_generation(store) < waits.get(iteration, 0):
            time.sleep(0.01)

    executor = Executor(make_task(*shape, options.get("poison")), store, member, timeout=300, after=padded)
    executor.run(iterations)
    assert executor.state is not None
    worker = executor.worker
    torch.save(
        {
            "worker": worker,
            "parameters": [parameter.detach() for parameter in executor.stage.parameters],
            "gradients": [parameter.grad for parameter in executor.stage.parameters],
            "losses": executor.losses,
            "peaks": executor.peaks,
            "ends": executor.ends,
            "generations": executor.generations,
            "copies": executor.copies,
            "skipped": executor.skipped,
        },
        Path(out, f"{member}.part"),
    )
    Path(out, f"{member}.part").replace(Path(out, f"{member}.pt"))


class Job:
    """Real processes, forked from a server that has torch loaded, with a store in this one."""

    def __init__(self, out: Path, shape: tuple[int, int], iterations: int, **options: Any) -> None:
        self.out, self.shape, self.iterations, self.options = out, shape, iterations, options
        self.processes: dict[str, Any] = {}

    @cached_property
    def store(self) -> Any:
        import torch.distributed as dist

        return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300))

    def start(self, *members: str) -> None:
        context = multiprocessing.get_context("forkserver")
        # The first optimizer imports torch._dynamo: once here in place of once a worker.
        context.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", "pitstop.pipeline.executor"])
        for member in members:
            arguments = (member, self.store.port, self.shape, self.iterations, str(self.out), self.options)
            self.processes[member] = context.Process(target=train, args=arguments, daemon=True)
            self.processes[member].start()

    def kill(self, member: str) -> None:
        self.processes[member].kill()
        self.processes.pop(member).join()

    def wait(self, seconds: float = 300) -> dict[str, Any]:
        import torch

        deadline = time.monotonic() + seconds
        for member, process in self.processes.items():
            process.join(max(0.0, deadline - time.monotonic()))
            assert process.exitcode == 0, f"{member} ended with {process.exitcode}"
        return {member: torch.load(self.out / f"{member}.pt") for member in self.processes}

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()
