"""Real ranks under `pitstop run` that go on in their processes when one of them is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.node.peer import ROOT, Peer, Runs, wait_for
from tests.sdk.elastic.ranks import ledger

pytestmark = pytest.mark.timeout(300)
STEPS = 60

TRAIN = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.sdk.elastic.ranks import train
train(sys.argv[1] + os.environ["RANK"], {STEPS}, 3, None, {{"pause": 0.01, "progress": sys.argv[2]}})
"""


@pytest.fixture
def script(runs: Runs, tmp_path: Path) -> Path:
    runs.python = sys.executable
    file = tmp_path / "train.py"
    file.write_text(TRAIN)
    return file


def pids(runs: Runs) -> dict[int, int]:
    return {item["rank"]: item["process"]["pid"] for item in runs.state()["placement"]["processes"]}


def beats(peer: Peer, generation: int = 0) -> int:
    steps = [
        item["step"] or 0 for beat in peer.posted("/heartbeat") if beat["generation"] == generation for item in beat["ranks"]
    ]
    return max(steps, default=0)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed", marks=pytest.mark.acceptance),
        pytest.param(signal.SIGSTOP, id="stopped", marks=[pytest.mark.soak, pytest.mark.whole]),
    ],
)
def test_a_lost_rank_costs_the_others_neither_their_process_nor_a_step(
    runs: Runs, peer: Peer, script: Path, tmp_path: Path, number: signal.Signals
) -> None:
    result, progress = tmp_path / "result", tmp_path / "progress"
    process = runs.start(script, str(result), str(progress), ranks=3)
    wait_for(lambda: beats(peer) >= 5, 100, "step 5")
    before = pids(runs)
    os.kill(before[1], number)
    wait_for(lambda: pids(runs) == {0: before[0], 2: before[2]}, 30, "generation 1")
    assert runs.state()["care"]["generation"] == 1
    _, error = process.communicate(timeout=100)
    assert process.returncode == 0, error
    found: list[dict[str, Any]] = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("result[0-9]"))]
    assert [item["rank"] for item in found] == [0, 2]
    assert found[0]["checksum"] == found[1]["checksum"] and found[0]["first"] == found[0]["last"] == ledger(STEPS, 3)
    # That it hung was told before; that it has ended is told under the key of the generation that it was lost in.
    ended = [item for item in peer.posted("/failures") if item["idempotency_key"] == "job:0"]
    assert ended and [(item["rank"], item["signal"]) for item in ended[0]["failed"]] == [(1, 9)]
    attempt = peer.posted("/attempts")[-1]
    assert attempt["generation"] == 1 and attempt["cause"] == "self" and [item["rank"] for item in attempt["ranks"]] == [0, 2]
    said = [line for line in peer.lines() if "goes on in generation 1" in line]
    assert len(said) == 2
    seconds = [float(match[1]) for line in said if (match := re.search(r"after ([0-9.]+) s", line))]
    assert len(seconds) == 2
    assert runs.processes() == []
