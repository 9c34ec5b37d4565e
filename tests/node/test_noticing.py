"""What the agent notices by itself while its ranks run, with faults scripted by rank and step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from node.inquiry import find_py_spy
from tests.faults import Fault, parse_faults
from tests.node.peer import Peer, Runs, wait_for

SCRIPT = Path(__file__).parent / "lockstep.py"


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    return tmp_path / "finish"


def notices(runs: Runs) -> str:
    try:
        return (runs.folder / "data/run/job/logs/0/monitor.log").read_text()
    except FileNotFoundError:
        return ""


@pytest.mark.parametrize("kind", ["stop", "spin"])
def test_a_rank_that_stands_still_is_named_and_reported_and_restarted_by_command_only(
    runs: Runs, peer: Peer, flag: Path, kind: str
) -> None:
    runs.environment["FAULTS"] = f"1@12:{kind}"
    stacks: list[list[str]] = []
    peer.on_failure = lambda _: stacks.append([line for line in peer.lines() if "monitor: stack of" in line])
    process = runs.start(SCRIPT, str(flag), "0.1", ranks=3)
    failure = wait_for(lambda: peer.posted("/failures"))[0]
    (failed,) = failure["failed"]
    assert (failed["rank"], failed["exit_code"], failed["signal"]) == (1, None, None)
    if find_py_spy() is not None:
        (lines,) = wait_for(lambda: stacks)
        assert any("stack of rank 1: strike (" in line for line in lines), "taken before what follows could end the ranks"
        assert any("wait (lockstep.py:" in line for line in lines)
    found = re.search(r"step 12 for ([0-9.]+) s \(mean ([0-9.]+) s, limit ([0-9.]+) s\)", failed["error"])
    assert found is not None, failed["error"]
    wait_for(lambda: any("hang: rank 1" in line for line in peer.lines(None)))
    assert process.poll() is None and runs.state()["care"]["phase"] == "running", "nothing is done without a command"
    peer.rows.append({"id": 1, "job": "job", "generation": 1, "kind": "restart_ranks", "args": {}, "deadline": None})
    wait_for(lambda: peer.posted("commands/1/result"))
    flag.touch()
    assert process.wait(120) == 0


def test_an_exception_is_reported_while_its_process_is_still_on_its_way_out(runs: Runs, peer: Peer, flag: Path) -> None:
    runs.environment["FAULTS"] = "1@12:raise_slowly"
    process = runs.start(SCRIPT, str(flag), "0.05", ranks=2)
    failure = wait_for(lambda: peer.posted("/failures"))[0]
    (failed,) = failure["failed"]
    assert (failed["rank"], failed["exit_code"], failed["error"], failed["step"]) == (
        1,
        None,
        "ValueError: injected at step 12",
        12,
    )
    peer.rows.append({"id": 1, "job": "job", "generation": 1, "kind": "restart_ranks", "args": {}, "deadline": None})
    wait_for(lambda: peer.posted("commands/1/result"))
    flag.touch()
    assert process.wait(120) == 0


def test_the_right_rank_is_called_slow(runs: Runs, flag: Path) -> None:
    runs.environment["FAULTS"] = "2@10:slow=1.5"
    process = runs.start(SCRIPT, str(flag), "0.1", ranks=3)
    wait_for(lambda: "straggler" in notices(runs))
    flag.touch()
    assert process.wait(120) == 0
    named = {line.split(":")[2] for line in notices(runs).splitlines() if "straggler" in line}
    assert all(name.startswith(" rank 2 ") for name in named), notices(runs)


@pytest.mark.parametrize(
    ("fault", "word", "told"),
    [
        ("0@30:nan", "loss is nan", True),
        ("0@30:spike=5", "the loss jumped", True),
        ("0@30:mute", "loss was last reported at step 29", False),
    ],
)
def test_numbers_that_go_wrong_are_noticed(runs: Runs, peer: Peer, flag: Path, fault: str, word: str, told: bool) -> None:
    runs.environment |= {"FAULTS": fault, "SLOW_FROM": "28"}
    process = runs.start(SCRIPT, str(flag), "0.12", ranks=2)
    wait_for(lambda: word in notices(runs))
    if told:
        failure = wait_for(lambda: peer.posted("/failures"))[0]
        assert failure["bad_since"] == 30
    flag.touch()
    assert process.wait(120) == 0
    assert bool(peer.posted("/failures")) == told


def test_a_clean_run_is_left_in_peace(runs: Runs, peer: Peer, flag: Path) -> None:
    process = runs.start(SCRIPT, str(flag), "0.05", ranks=2)
    wait_for(lambda: any((rank["step"] or 0) > 100 for beat in peer.posted("/heartbeat") for rank in beat["ranks"]))
    flag.touch()
    assert process.wait(120) == 0
    assert [line for line in notices(runs).splitlines() if "under use" not in line] == []
    assert peer.posted("/failures") == []


def test_faults_are_scripted_by_rank_and_step() -> None:
    assert parse_faults("1@20:kill always:0@5:slow=1.5") == [Fault(1, 20, "kill"), Fault(0, 5, "slow", 1.5, True)]
