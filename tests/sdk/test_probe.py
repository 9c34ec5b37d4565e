"""The probe worker as a process: worlds of one machine, and what becomes of those that cannot be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pitstop.probe import interface_of

pytestmark = pytest.mark.acceptance


class Worker:
    def __init__(self) -> None:
        command = [sys.executable, "-m", "pitstop.probe", "127.0.0.1"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.port = 0

    def ask(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"backend": "gloo", "bytes": 1 << 18} | message) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.port = answer["port"]
        return answer


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Worker, Worker]]:
    workers = Worker(), Worker()
    for worker in workers:
        assert worker.hear()["ready"]
    yield workers
    for worker in workers:
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        assert worker.process.wait(100) == 0


def place(first: Worker, index: int, **more: Any) -> dict[str, Any]:
    return {"op": "world", "index": index, "members": 2, "local": 1, "host": "127.0.0.1", "port": first.port} | more


def test_a_node_is_tried_alone(pair: tuple[Worker, Worker]) -> None:
    pair[0].ask(op="alone", id="a", seconds=60.0)
    assert pair[0].hear()["outcome"] == "passed"


def test_a_rank_that_is_killed_ends_the_probe_long_before_its_limit(pair: tuple[Worker, Worker]) -> None:
    worker = pair[0].process.pid
    pair[0].ask(op="alone", id="k", seconds=3600.0)
    children = Path(f"/proc/{worker}/task/{worker}/children")
    while len(ranks := children.read_text().split()) < 2:
        time.sleep(0.001)
    os.kill(int(ranks[0]), signal.SIGSTOP)
    os.kill(int(ranks[1]), signal.SIGKILL)
    said = pair[0].hear()
    assert (said["outcome"], said["error"]) == ("void", "the probe was killed by signal 9")
    assert children.read_text() == "", "no rank is left behind"


def test_a_world_of_two_passes_and_the_next_one_gets_another_store(pair: tuple[Worker, Worker]) -> None:
    first = pair[0]
    for number in range(2):
        before = first.port
        for index, worker in enumerate(pair):
            worker.ask(**place(first, index, id=f"w{number}", seconds=60.0))
        said = [worker.hear() for worker in pair]
        assert [item["outcome"] for item in said] == ["passed", "passed"], said
        assert all(item["seconds"] > 0 for item in said)
        assert first.port != before


def test_a_peer_that_does_not_come_is_given_up_within_the_limit(pair: tuple[Worker, Worker]) -> None:
    first = pair[0]
    for index, worker in enumerate(pair):
        began = time.monotonic()
        worker.ask(**place(first, index, id=f"gone{index}", seconds=1.0))
        said = worker.hear()
        assert said["outcome"] == "timed_out"
        assert 0.9 < said["seconds"] < time.monotonic() - began + 0.1


def test_a_probe_that_makes_no_sense_is_answered_and_proves_nothing(pair: tuple[Worker, Worker]) -> None:
    pair[0].ask(op="world", id="x", seconds=1.0)
    assert pair[0].hear()["outcome"] == "void"
    pair[0].ask(**place(pair[0], 0, id="y", seconds=1.0, port=1))
    assert "not open here" in pair[0].hear()["error"]


def test_an_address_is_found_on_its_interface() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
