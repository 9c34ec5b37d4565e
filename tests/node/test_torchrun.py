"""`pitstop run -- torchrun ...`: care for a launcher that starts the ranks itself."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from node.ranks import job_interpreter, starts_ranks_itself
from tests.node.peer import Peer, Runs


@pytest.mark.parametrize(
    ("command", "itself"),
    [
        ("torchrun --nproc_per_node 2 train.py", True),
        ("/opt/bin/torchrun train.py", True),
        ("python -m torch.distributed.run train.py", True),
        ("python3.11 -u -m accelerate.commands.launch train.py", True),
        ("accelerate launch train.py", True),
        ("python train.py -m torch", False),
        ("python -m train", False),
        ("bash run.sh", False),
    ],
)
def test_launchers_are_told_from_training_commands(command: str, itself: bool) -> None:
    assert starts_ranks_itself(command.split()) == itself


def test_the_jobs_interpreter_is_what_was_named_else_the_commands_else_the_paths() -> None:
    assert job_interpreter("/opt/python", ["python", "x"], "/nowhere") == "/opt/python"
    assert job_interpreter(None, [sys.executable, "x"], "/nowhere") == sys.executable
    assert job_interpreter(None, ["bash", "x"], str(Path(sys.executable).parent)) is not None
    assert job_interpreter(None, ["bash", "x"], "/nowhere") is None


@pytest.mark.acceptance
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torchruns_first_failure_is_reported_with_its_exception(runs: Runs, peer: Peer, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pitstop, torch.distributed as dist\n"
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\n"
        "def main():\n"
        "    monitor = pitstop.init()\n"
        "    dist.init_process_group('gloo')\n"
        "    for i in range(3):\n"
        "        with monitor.step(i):\n"
        "            dist.barrier()\n"
        "    if dist.get_rank() == 1:\n"
        "        raise ValueError('bad batch')\n"
        "    dist.barrier()\n"
        "main()\n"
    )
    peer.on_failure = lambda failure: peer.rows.append(
        {"id": 1, "job": "job", "generation": 0, "kind": "stop_ranks", "args": {"why": "enough"}, "deadline": None}
    )
    runs.python = sys.executable
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    process = runs.start(Path(launcher[0]), *launcher[1:], str(script), ranks=1)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1, error
    (failed,) = peer.posted("/failures")[0]["failed"]
    # torchrun tells of it before it has ended itself.
    assert failed["rank"] == 0 and failed["exit_code"] in (None, 1) and "bad batch" in failed["error"]
    assert any("ValueError: bad batch" in line for line in peer.lines())
    assert runs.processes() == []
