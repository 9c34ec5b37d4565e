"""What CUDA does to a rank, told by the agent: out of memory and a device-side assert, through the sdk."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.node.peer import Peer, Runs, wait_for

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(200)]

SCRIPT = """
import sys
import torch
import pitstop
monitor = pitstop.init()
for step in range(4):
    with monitor.step(step):
        weights = torch.ones(1024, 1024, device="cuda")
        if step == 3 and sys.argv[1] == "memory":
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        if step == 3 and sys.argv[1] == "assert":
            weights[torch.tensor([5000], device="cuda")]
            torch.cuda.synchronize()
"""


@pytest.fixture(autouse=True)
def a_gpu() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA here: its errors are not raised")


@pytest.mark.parametrize(("what", "word"), [("memory", "OutOfMemoryError"), ("assert", "device-side assert")])
def test_an_error_of_cuda_is_told_with_its_rank_and_step(runs: Runs, peer: Peer, tmp_path: Path, what: str, word: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    runs.python = sys.executable
    runs.start(script, what, ranks=1)
    failure = wait_for(lambda: peer.posted("/failures"), 120)[0]
    (failed,) = failure["failed"]
    assert failed["rank"] == 0 and failed["step"] == 3
    assert word in failed["error"]
