"""`pitstop run` with real processes and a real socket to the service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.node.peer import BARE_PYTHON, ROOT, Peer, Runs, wait_for

TRAIN = """
import os, sys, time
import pitstop
rank, generation = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
monitor = pitstop.init()
print("rank", rank, "of", os.environ["WORLD_SIZE"], "generation", generation, flush=True)
until = sys.argv[1]
step = 0
while not os.path.exists(until):
    with monitor.step(step):
        print("step", step, flush=True)
        time.sleep(0.02)
    if step == 5 and generation == 0 and sys.argv[2:] == ["raise", str(rank)]:
        raise ValueError("bad batch")
    step += 1
print("last words", end="")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(TRAIN)
    return file


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    return tmp_path / "finish"


def restart_row(peer: Peer, **fields: Any) -> Any:
    def add(failure: dict[str, Any]) -> None:
        row = {"id": 1, "job": "job", "generation": failure["generation"] + 1, "kind": "restart_ranks", "args": {}}
        peer.rows.append({**row, "deadline": None, **fields})

    return add


def ranks_of(runs: Runs) -> dict[int, int]:
    return {item["rank"]: item["process"]["pid"] for item in runs.state()["placement"]["processes"]}


def running(runs: Runs) -> bool:
    try:
        state = runs.state()
    except FileNotFoundError:
        return False
    return state["care"]["phase"] == "running"


def test_a_command_that_ends_well_is_a_good_end_and_every_line_arrives_once(
    runs: Runs, peer: Peer, script: Path, flag: Path
) -> None:
    flag.touch()
    process = runs.start(script, str(flag))
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "[rank0]: rank 0 of 2 generation 0" in out and "[rank1]: last words" in out
    assert peer.lines(0) == ["rank 0 of 2 generation 0", "last words"]
    registration = peer.posted("jobs")[0]
    assert registration["ranks"] == 2 and registration["command"][1] == str(script)
    (attempt,) = peer.posted("/attempts")
    assert (attempt["generation"], attempt["cause"]) == (0, "start")
    end = peer.posted("/heartbeat")[-1]
    assert end["ended"] is True and end["exit_status"] == 0 and {item["state"] for item in end["ranks"]} == {"exited"}
    wait_for(lambda: runs.processes() == [])


def test_steps_of_every_rank_are_in_the_heartbeat(runs: Runs, peer: Peer, script: Path, flag: Path) -> None:
    process = runs.start(script, str(flag))
    wait_for(lambda: any(all((rank["step"] or 0) > 2 for rank in beat["ranks"]) for beat in peer.posted("/heartbeat")))
    flag.touch()
    assert process.wait(120) == 0
    assert peer.posted("nodes/n1/lease")[0]["boot_id"]


def test_a_killed_rank_is_reported_and_restarted_when_the_service_says_so(
    runs: Runs, peer: Peer, script: Path, flag: Path
) -> None:
    peer.on_failure = restart_row(peer)
    process = runs.start(script, str(flag))
    wait_for(lambda: running(runs) and "step 3" in peer.lines(1))
    first = ranks_of(runs)
    os.kill(first[1], signal.SIGKILL)
    result = wait_for(lambda: peer.posted("commands/1/result"))
    assert result[0]["status"] == "done" and result[0]["generation"] == 1
    (failure,) = peer.posted("/failures")
    (failed,) = failure["failed"]
    assert (failed["rank"], failed["exit_code"], failed["signal"]) == (1, None, 9)
    assert failure["last_step"] >= 3 and failure["generation"] == 0
    second = ranks_of(runs)
    assert set(first.values()).isdisjoint(second.values())
    flag.touch()
    assert process.wait(120) == 0
    assert peer.posted("/attempts")[-1]["cause"] == "restart"
    assert "rank 1 of 2 generation 1" in peer.lines(1)


def test_the_lines_of_a_failed_rank_arrive_before_the_report_of_its_failure(
    runs: Runs, peer: Peer, script: Path, flag: Path
) -> None:
    seen: list[list[str]] = []
    peer.on_failure = lambda _: seen.append(peer.lines(0))
    runs.start(script, str(flag), "raise", "0", max_restarts=0)
    wait_for(lambda: seen)
    assert seen[0][-1] == "ValueError: bad batch"
    (failed,) = peer.posted("/failures")[0]["failed"]
    assert (failed["error"], failed["step"], failed["exit_code"]) == ("ValueError: bad batch", 5, 1)


def test_a_stop_command_gives_the_job_up_with_the_reason(runs: Runs, peer: Peer, script: Path, flag: Path) -> None:
    peer.on_failure = restart_row(peer, kind="stop_ranks", generation=0, args={"why": "the batch is bad; fix the data"})
    process = runs.start(script, str(flag), "raise", "1")
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "given up: the batch is bad; fix the data" in error
    assert peer.posted("commands/1/result")[0]["status"] == "done"
    wait_for(lambda: runs.processes() == [])


def test_without_a_service_the_agent_restarts_by_itself(tmp_path: Path, script: Path, flag: Path) -> None:
    runs = Runs(tmp_path, "http://127.0.0.1:9")
    try:
        process = runs.start(script, str(flag), "raise", "1")
        wait_for(lambda: (tmp_path / "data/run/job/logs/1/rank1.log").exists())
        flag.touch()
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0
        assert "the service does not answer (Connection refused)" in error and "generation 1 (self)" in error
        assert "not everything reached the service" in error
    finally:
        runs.end()


def test_a_job_name_that_no_folder_can_have_is_told_as_that(tmp_path: Path, script: Path) -> None:
    process = Runs(tmp_path, "http://127.0.0.1:9").start(script, job="x" * 256)
    _, error = process.communicate(timeout=120)
    assert (process.returncode, "choose a shorter --job" in error, "data-dir" in error) == (2, True, False)


def test_a_service_that_dies_leaves_the_ranks_alone_and_gets_the_lines_later(
    runs: Runs, peer: Peer, script: Path, flag: Path
) -> None:
    process = runs.start(script, str(flag))
    wait_for(lambda: running(runs) and "step 3" in peer.lines(0))
    before = ranks_of(runs)
    peer.down()
    wait_for(lambda: "step 40" in (runs.folder / "data/run/job/logs/0/rank0.log").read_text())
    assert ranks_of(runs) == before and process.poll() is None
    peer.up()
    wait_for(lambda: "step 40" in peer.lines(0))
    flag.touch()
    assert process.wait(120) == 0
    texts = peer.lines(0)
    assert texts[1:-1] == [f"step {number}" for number in range(len(texts) - 2)], "no line lost, none doubled"


def test_a_killed_agent_leaves_the_ranks_alone_and_the_next_one_takes_them_over(
    runs: Runs, peer: Peer, script: Path, flag: Path
) -> None:
    first = runs.start(script, str(flag))
    wait_for(lambda: running(runs) and "step 3" in peer.lines(0))
    before = ranks_of(runs)
    peer.lose_log_answers = True
    first.kill()
    first.wait()
    log = runs.folder / "data/run/job/logs/0/rank0.log"
    count = len(log.read_text().splitlines())
    wait_for(lambda: len(log.read_text().splitlines()) > count + 10)
    peer.lose_log_answers = False
    second = runs.start(script, str(flag))
    wait_for(lambda: any(item["cause"] == "takeover" for item in peer.posted("/attempts")))
    assert ranks_of(runs) == before
    flag.touch()
    _, error = second.communicate(timeout=120)
    assert second.returncode == 0 and "took over 2 of 2 ranks, generation 0" in error
    texts = peer.lines(0)
    assert texts[1:-1] == [f"step {number}" for number in range(len(texts) - 2)] and texts[-1] == "last words"
    wait_for(lambda: runs.processes() == [])


def test_the_exit_status_of_a_rank_that_died_while_no_agent_lived_is_known_to_the_next(
    runs: Runs, peer: Peer, script: Path, flag: Path
) -> None:
    first = runs.start(script, str(flag))
    wait_for(lambda: running(runs) and "step 3" in peer.lines(0))
    first.kill()
    first.wait()
    os.kill(ranks_of(runs)[0], signal.SIGSEGV)
    wait_for(lambda: (runs.folder / "data/run/job/exits.jsonl").read_text())
    peer.on_failure = restart_row(peer, kind="stop_ranks", generation=0, args={"why": "enough"})
    second = runs.start(script, str(flag))
    assert second.wait(120) == 1
    (failed,) = peer.posted("/failures")[0]["failed"]
    assert (failed["rank"], failed["signal"]) == (0, 11)


def test_a_keeper_that_is_killed_costs_nothing_but_knowledge(runs: Runs, peer: Peer, script: Path, flag: Path) -> None:
    peer.on_failure = restart_row(peer)
    process = runs.start(script, str(flag))
    wait_for(lambda: running(runs) and "step 3" in peer.lines(0))
    os.kill(runs.state()["placement"]["keeper"]["pid"], signal.SIGKILL)
    os.kill(ranks_of(runs)[0], signal.SIGKILL)
    wait_for(lambda: peer.posted("commands/1/result"))
    (failed,) = peer.posted("/failures")[0]["failed"]
    assert (failed["rank"], failed["exit_code"], failed["signal"]) == (0, None, None)
    wait_for(lambda: "rank 0 of 2 generation 1" in peer.lines(0))
    flag.touch()
    assert process.wait(120) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_to_the_ranks(runs: Runs, peer: Peer, tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "wait.py"
    script.write_text(
        "import signal, sys\n"
        "for s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, lambda n, f: (print('got', n, flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\nwhile True: signal.pause()\n"
    )
    process = runs.start(script)
    wait_for(lambda: running(runs) and peer.lines() == ["ready", "ready"])
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert out.count(f"got {number.value}") == 2
    assert peer.posted("/failures") == []


def test_no_grandchild_outlives_the_job(runs: Runs, tmp_path: Path) -> None:
    script = tmp_path / "fork.py"
    script.write_text(
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[0]])\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[0]], start_new_session=True)\n"
    )
    process = runs.start(script, ranks=1)
    assert process.wait(120) == 0
    wait_for(lambda: runs.processes() == [])


def test_one_job_has_one_agent(runs: Runs, script: Path, flag: Path) -> None:
    first = runs.start(script, str(flag))
    wait_for(lambda: running(runs))
    second = runs.start(script, str(flag))
    _, error = second.communicate(timeout=120)
    assert (
        second.returncode == 2 and error == "pitstop: job job is cared for by another pitstop run already; choose another --job\n"
    )
    flag.touch()
    assert first.wait(120) == 0


def test_another_command_does_not_take_a_job_over(runs: Runs, script: Path, flag: Path) -> None:
    first = runs.start(script, str(flag))
    wait_for(lambda: running(runs))
    first.kill()
    first.wait()
    second = runs.start(script, str(flag), "other")
    _, error = second.communicate(timeout=120)
    assert second.returncode == 2 and "choose another --job" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "/no/such/program"], "is not found"),
        (["--service", "nowhere", "--", BARE_PYTHON, "x"], "is no address"),
        (["--service", "http://here:all", "--", BARE_PYTHON, "x"], "is no address"),
        (["--token-file", "/no/such/file", "--", BARE_PYTHON, "x"], "cannot read the token file"),
        (["--data-dir", "/proc/x", "--", BARE_PYTHON, "x"], "--data-dir"),
    ],
)
def test_bad_usage_gets_one_line_and_starts_nothing(arguments: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "pitstop_entry.py"), "run", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_agent_and_command_line_never_load_torch() -> None:
    code = "import sys; import cli.main, cli.run, node.launch, node.agent, node.keeper; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.stdout == "False\n", done.stderr


def test_an_undecided_failure_is_asked_about_again_under_the_same_key(runs: Runs, peer: Peer, script: Path, flag: Path) -> None:
    def reported(failure: dict[str, Any]) -> None:
        if len(peer.posted("/failures")) > 1:
            restart_row(peer)(failure)

    peer.on_failure = reported
    process = runs.start(script, str(flag), "raise", "1")
    wait_for(lambda: peer.posted("commands/1/result"))
    flag.touch()
    assert process.wait(120) == 0
    first, second = peer.posted("/failures")
    assert first["idempotency_key"] == second["idempotency_key"]


def test_a_terminal_that_nobody_reads_holds_neither_the_ranks_nor_the_end_up(runs: Runs, peer: Peer, tmp_path: Path) -> None:
    script = tmp_path / "flood.py"
    script.write_text("for number in range(50_000): print('line', number)")
    process = runs.start(script, ranks=1)
    assert process.wait(120) == 0
    assert peer.lines(0)[-1] == "line 49999"


def test_an_agent_works_among_folders_that_are_named_like_its_own(runs: Runs, peer: Peer, script: Path, flag: Path) -> None:
    shadow = runs.folder / "shadow"
    for place in (shadow, runs.folder):
        for name in ("rules", "node", "detectors", "cli", "service"):
            (place / name).mkdir(parents=True)
            (place / name / "__init__.py").write_text(f"raise SystemExit('the wrong {name}')")
    runs.environment["PYTHONPATH"] = f"{shadow}:{ROOT / 'sdk'}"
    flag.touch()
    process = runs.start(script, str(flag))
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error


def test_an_agent_needs_nothing_that_only_the_service_has() -> None:
    absent = ("fastapi", "sqlalchemy", "alembic", "uvicorn", "pydantic", "jinja2", "dbos", "openai", "faiss", "ortools", "torch")
    block = f"import sys; sys.modules.update(dict.fromkeys({absent!r}))"
    code = f"{block}; import cli.run, cli.node, node.launch, node.node_agent, node.keeper; print('works')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.stdout == "works\n", done.stderr
