"""The warm spare: what it may run, and ranks that it forks, with real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from node.spare import script_of
from tests.node.peer import Peer, Runs, wait_for

SCRIPT = """
import os, sys, time
import pitstop
monitor = pitstop.init()
rank, generation = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
warm = "warm" if "pitstop.spare" in sys.modules else "cold"
print(warm, "rank", rank, "generation", generation, __name__, sys.argv[1:] == [sys.argv[1]])
step = 0
while not os.path.exists(sys.argv[1]):
    with monitor.step(step):
        time.sleep(0.02)
    if generation == 1 and rank == "1" and step == 5:
        raise ValueError("bad batch")
    step += 1
"""


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --lr 1", ("train.py", "--lr", "1")),
        ("/opt/bin/python3.11 -u train.py", ("train.py",)),
        ("python -m train", None),
        ("python -X dev train.py", None),
        ("bash run.sh", None),
        ("python", None),
    ],
)
def test_only_plain_scripts_are_run_in_a_fork(command: str, script: tuple[str, ...] | None) -> None:
    assert script_of(command.split()) == script


def restart(peer: Peer, failure: dict[str, Any]) -> None:
    generation = failure["generation"] + 1
    row = {"id": generation, "job": "job", "generation": generation, "kind": "restart_ranks", "args": {}, "deadline": None}
    if all(known["id"] != generation for known in peer.rows):
        peer.rows.append(row)


def test_ranks_that_start_again_are_forked_from_the_spare_and_end_as_any_other(runs: Runs, peer: Peer, tmp_path: Path) -> None:
    peer.on_failure = lambda failure: restart(peer, failure)
    script, flag = tmp_path / "train.py", tmp_path / "finish"
    script.write_text(SCRIPT)
    process = runs.start(script, str(flag))
    wait_for(lambda: (tmp_path / "data/run/job/spare.sock").exists(), what="the spare")
    assert peer.lines(0)[0].startswith("cold rank 0")
    os.kill(next(it["process"]["pid"] for it in runs.state()["placement"]["processes"] if it["rank"] == 0), signal.SIGKILL)
    wait_for(lambda: "warm rank 1 generation 1 __main__ True" in peer.lines(1))
    first, second = wait_for(lambda: len(peer.posted("/failures")) == 2 and peer.posted("/failures"))
    assert first["failed"][0]["signal"] == 9
    (failed,) = second["failed"]
    assert (failed["rank"], failed["error"], failed["step"]) == (1, "ValueError: bad batch", 5)
    assert any("ValueError: bad batch" in line for line in peer.lines(1)), "its traceback is in its log"
    wait_for(lambda: "warm rank 0 generation 2 __main__ True" in peer.lines(0))
    flag.touch()
    assert process.wait(60) == 0
    wait_for(lambda: runs.processes() == [], what="the end of every process")
