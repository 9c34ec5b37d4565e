"""The NCCL side of the probe worker in a world of one: all that one GPU can show. A world of two needs two."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

STORY = """
import os, socket
os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
import torch
from pitstop.probe_group import TorchGroup, check_alone, timed_allgather

assert TorchGroup.best_backend() == "nccl"
listener = socket.create_server(("127.0.0.1", 0))
group = TorchGroup("nccl", 0, 1, "127.0.0.1", listener.getsockname()[1], "one", listener)
assert check_alone(group) == ""
seconds = timed_allgather(group, 1 << 24, 60.0)
assert isinstance(seconds, float) and seconds > 0, seconds
assert group.error() is None
from torch._C._distributed_c10d import _dump_nccl_trace
dump = _dump_nccl_trace()
assert dump and b"all_gather" in bytes(dump), "the flight recorder holds the allgathers"
group.abort()
print("done")
"""


@pytest.fixture(autouse=True)
def a_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA here: the NCCL path of the probe is not exercised")


def test_init_allgather_error_flight_recorder_and_abort_in_a_world_of_one() -> None:
    told = subprocess.run([sys.executable, "-c", STORY], capture_output=True, text=True, timeout=110)
    assert told.returncode == 0, told.stderr
    assert told.stdout.split() == ["done"]


def test_the_worker_probes_alone_on_nccl_after_a_fork() -> None:
    from pitstop.probe import Worker
    from pitstop.probe_group import TorchGroup

    TorchGroup.warm()
    answer = Worker("127.0.0.1").answer({"op": "alone", "id": "1", "backend": "nccl", "bytes": 1 << 24, "seconds": 100.0})
    assert answer["outcome"] == "passed", answer
    assert socket.create_connection(("127.0.0.1", answer["port"])).close() is None
