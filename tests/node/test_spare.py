"""The warm spare: what it may run, and ranks that it forks, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detectors.processes import identify, is_running
from node.sdk_process import program_of
from node.spare import script_of
from pitstop import protocol
from tests.node.peer import ROOT, Peer, Runs, wait_for

SCRIPT = """
import os, sys, time
warm = "warm" if "ctypes" in sys.modules else "cold"
import pitstop
monitor = pitstop.init()
rank, generation = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
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


@pytest.fixture
def shadow(tmp_path: Path) -> Path:
    """A folder of the user's own that is called as the SDK is."""
    (tmp_path / "pitstop").mkdir()
    (tmp_path / "pitstop" / "__init__.py").write_text("whose = 'the user'")
    return tmp_path


def test_a_folder_named_pitstop_does_not_shadow_the_sdk_for_the_store_process(shadow: Path) -> None:
    words = [sys.executable, "-c", program_of("pitstop.store"), str(shadow / "store.sock")]
    process = subprocess.Popen(words, cwd=shadow, env={**os.environ, "PYTHONPATH": f"{shadow}:"})
    wait_for(lambda: (shadow / "store.sock").exists() or process.poll() is not None)
    assert protocol.exchange(str(shadow / "store.sock"), {"op": "end"})["ok"]
    assert process.wait(60) == 0


def test_a_script_that_a_spare_runs_imports_the_pitstop_of_its_own_path(shadow: Path) -> None:
    (shadow / "train.py").write_text("import pitstop; print(pitstop.whose)")
    code = program_of("pitstop.spare").replace("import main; main()", "import run_script; run_script(sys.argv[1:])")
    done = subprocess.run([sys.executable, "-c", code, str(shadow / "train.py")], capture_output=True, text=True, cwd="/")
    assert (done.stdout, done.stderr) == ("the user\n", "")


def test_a_spare_whose_keeper_is_killed_ends_too_but_not_what_it_forked() -> None:
    spare = (
        "import os, time; from pitstop.spare import end_with_parent; end_with_parent(); rank = os.fork(); rank or time.sleep(60);"
        " print(os.getpid(), rank, flush=True); time.sleep(60)"
    )
    keeper = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {spare!r}]); time.sleep(60)"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "sdk")}
    process = subprocess.Popen([sys.executable, "-c", keeper], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid, rank = map(int, process.stdout.readline().split())
    identity, forked = identify(pid), identify(rank)
    assert identity is not None and forked is not None
    try:
        process.kill()
        process.wait()
        wait_for(lambda: not is_running(identity), what="the end of the spare")
        assert is_running(forked)
    finally:
        os.kill(rank, signal.SIGKILL)
        process.stdout.close()


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
    wait_for(lambda: peer.lines(0), what="the first line")
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
    assert process.wait(120) == 0
    wait_for(lambda: runs.processes() == [], what="the end of every process")
