"""What a probe does inside one rank: a process group behind a small Protocol, and the checks that are made with it."""

import datetime
import socket
import time
from typing import Any, List, Optional, Union

try:
    from typing import Protocol
except ImportError:  # pragma: no cover
    Protocol = object  # type: ignore[assignment]

__all__ = ["Group", "TorchGroup", "check_alone", "timed_allgather"]

# Times of one probe: the best of these many counts, as far as the limit allows.
REPEATS = 3
MATRIX = 256
MEMORY_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}


class Group(Protocol):
    """A process group as a probe needs it."""

    rank: int
    size: int

    def init(self, seconds: float) -> None:
        """Join. Raises RuntimeError where not everybody is there within `seconds`."""

    def allgather(self, tensor: Any, into: "Optional[List[Any]]" = None) -> "List[Any]":
        """The tensors of all ranks, in order, in the memory of `into` where given. Raises RuntimeError."""

    def abort(self) -> None:
        """Leave without waiting for anybody."""

    def error(self) -> Optional[str]:
        """What the backend says went wrong; None where it says nothing."""


class TorchGroup:
    """torch.distributed on gloo or nccl, over a store of its own. `listener`: the bound socket of the store, on the rank that
    runs it; nobody else's."""

    def __init__(
        self, backend: str, rank: int, size: int, host: str, port: int, name: str, listener: Optional[socket.socket] = None
    ) -> None:
        if backend not in ("gloo", "nccl"):
            raise ValueError("no backend %r: gloo or nccl" % backend)
        self.backend = backend
        self.rank = rank
        self.size = size
        self._host = host
        self._port = port
        self._name = name
        self._listener = listener
        self._started = False
        import torch

        torch.set_num_threads(1)
        self.device = torch.device("cpu")
        if backend == "nccl":
            self.device = torch.device("cuda", rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)

    @staticmethod
    def warm() -> None:
        """Import what every probe needs; nothing that starts a thread or touches a GPU, so that forking stays safe."""
        import torch.distributed  # noqa: F401

    @staticmethod
    def gpus() -> int:
        """GPUs of this node, counted without touching them (a forked process could not use CUDA any more)."""
        import torch

        if not torch.distributed.is_nccl_available():
            return 0
        return int(torch.cuda.device_count())

    @staticmethod
    def best_backend() -> str:
        return "nccl" if TorchGroup.gpus() else "gloo"

    @staticmethod
    def local_size(backend: str) -> int:
        """Ranks of a node's world with itself: one a GPU; two processes where there is none."""
        return max(1, TorchGroup.gpus()) if backend == "nccl" else 2

    def init(self, seconds: float) -> None:
        import torch.distributed as dist

        limit = datetime.timedelta(seconds=max(0.1, seconds))
        if self._listener is not None:
            store = dist.TCPStore(
                self._host,
                self._port,
                is_master=True,
                wait_for_workers=False,
                timeout=limit,
                master_listen_fd=self._listener.detach(),
            )
        else:
            store = dist.TCPStore(self._host, self._port, is_master=False, wait_for_workers=False, timeout=limit)
        dist.init_process_group(
            self.backend,
            store=dist.PrefixStore(self._name, store),
            rank=self.rank,
            world_size=self.size,
            timeout=limit,
            device_id=self.device if self.backend == "nccl" else None,
        )
        self._started = True

    def allgather(self, tensor: Any, into: "Optional[List[Any]]" = None) -> "List[Any]":
        import torch
        import torch.distributed as dist

        parts = into or [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor)
        if self.backend == "nccl":
            torch.cuda.synchronize(self.device)
        return parts

    def _backend(self) -> Any:
        import torch.distributed as dist

        return dist.distributed_c10d._get_default_group()._get_backend(self.device)

    def abort(self) -> None:
        # gloo has no abort that frees anybody: its process is ended instead.
        if self._started and self.backend == "nccl":
            self._backend().abort()
        self._started = False

    def error(self) -> Optional[str]:
        if not self._started or self.backend != "nccl":
            return None
        found = self._backend().get_error()
        return None if found is None or str(found).endswith("SUCCESS") else str(found)


def pattern(size: int, rank: int, device: Any) -> Any:
    """What `rank` sends: different in every place and for every rank."""
    import torch

    return torch.arange(size, dtype=torch.int32, device=device).mul_(2654435 + 2 * rank).add_(rank + 1)


def timed_allgather(group: Group, size_bytes: int, seconds: float) -> Union[float, str]:
    """Seconds of the best of a few allgathers of `size_bytes` a rank, or what was wrong with the data. Raises RuntimeError."""
    import torch

    began = time.monotonic()
    device = getattr(group, "device", None)
    group.init(seconds)
    count = max(1, size_bytes // 4)
    # Touching new memory costs a process that just forked more than sending it.
    expected = [pattern(count, rank, device) for rank in range(group.size)]
    parts = [torch.empty_like(one) for one in expected]
    mine = expected[group.rank]
    group.allgather(mine[:1])
    best = float("inf")
    for _ in range(REPEATS):
        for part in parts:
            part.zero_()
        # Everybody starts together, so that one rank's lateness is not counted as the other's time.
        group.allgather(mine[:1])
        start = time.monotonic()
        group.allgather(mine, parts)
        best = min(best, time.monotonic() - start)
        for rank, part in enumerate(parts):
            if not torch.equal(part, expected[rank]):
                wrong = int((part != expected[rank]).sum())
                return "rank %d got %d wrong words of %d from rank %d" % (group.rank, wrong, count, rank)
        # Everybody must do the same number of rounds: rank 0 says whether there is time for another one.
        more = torch.tensor([time.monotonic() - began + 2 * best < seconds / 2], dtype=torch.int32, device=device)
        if not int(group.allgather(more)[0][0]):
            break
    problem = group.error()
    if problem is not None:
        raise RuntimeError(problem)
    return best


def check_alone(group: Group) -> str:
    """Compute and memory of this rank's device: what is wrong, "" where nothing is."""
    import torch

    device = getattr(group, "device", None)
    rows = (torch.arange(MATRIX, device=device) % 7).to(torch.float32)
    columns = (torch.arange(MATRIX, device=device) % 5).to(torch.float32)
    # Small whole numbers: the product is exact, whatever the order of summation.
    product = rows[:, None].expand(MATRIX, MATRIX) @ columns[None, :].expand(MATRIX, MATRIX)
    if not torch.equal(product, MATRIX * rows[:, None] * columns[None, :]):
        return "a matrix product is wrong"
    for value in (0x55, 0xAA):
        block = torch.full((MEMORY_BYTES[product.device.type],), value, dtype=torch.uint8, device=device)
        if int(block.min()) != value or int(block.max()) != value:
            return "memory does not keep what is written to it"
    return ""
