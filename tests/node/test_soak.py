"""Long absences, in full at SCALE=1: the service is away for ten minutes, and the agent dies in between."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.node.peer import Peer, Runs, wait_for

pytestmark = [pytest.mark.soak, pytest.mark.whole]

SCALE = float(os.environ.get("SCALE", "1"))
AWAY_SECONDS = 600 * SCALE
RANKS = 4

TALK = """
import os, sys, time
number = 0
while not os.path.exists(sys.argv[1]):
    for _ in range(5):
        print("line", number, flush=True)
        number += 1
    time.sleep(0.05)
print("the end")
"""


def test_ten_minutes_without_a_service_and_a_killed_agent_lose_and_double_no_line(runs: Runs, peer: Peer, tmp_path: Path) -> None:
    script, flag = tmp_path / "talk.py", tmp_path / "finish"
    script.write_text(TALK)
    first = runs.start(script, str(flag), ranks=RANKS)
    wait_for(lambda: all(peer.lines(rank) for rank in range(RANKS)))
    peer.down()
    time.sleep(AWAY_SECONDS / 2)
    first.kill()
    first.wait()
    second = runs.start(script, str(flag), ranks=RANKS)
    time.sleep(AWAY_SECONDS / 2)
    assert second.poll() is None
    # It comes back, loses the answers to what it stores for a while, and then works.
    peer.lose_log_answers = True
    peer.up()
    time.sleep(2)
    peer.lose_log_answers = False
    wait_for(lambda: any(item["cause"] == "takeover" for item in peer.posted("/attempts")))
    flag.touch()
    assert second.wait(120) == 0
    for rank in range(RANKS):
        texts = peer.lines(rank)
        assert texts == [*(f"line {number}" for number in range(len(texts) - 1)), "the end"]
        assert len(texts) > AWAY_SECONDS
    assert runs.processes() == []
