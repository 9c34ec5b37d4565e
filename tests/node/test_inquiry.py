"""What is asked about ranks that hang: their stacks, and NCCL's RAS service in the words of its documentation."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detectors.processes import identify
from node.dumps import dump_environment, read_dumps
from node.inquiry import Inquiry, find_py_spy, group_stacks, main_stack
from node.ras import ras_address, read_status
from tests.node.peer import wait_for


def test_equal_stacks_are_one_line_and_the_odd_one_out_comes_first() -> None:
    waiting, loading = "all_reduce (c10d.py:12) < main (train.py:7)", "read (data.py:3) < main (train.py:5)"
    assert group_stacks({0: waiting, 1: loading, 2: waiting, 3: waiting}) == (
        f"stack of rank 1: {loading}",
        f"stack of ranks 0, 2, 3: {waiting}",
    )


def test_the_main_thread_is_the_one_that_trains() -> None:
    frame = {"name": "read", "filename": "/data.py", "short_filename": "data.py", "line": 3}
    other = {"thread_name": "Thread-1", "frames": [dict(frame, name="pin")]}
    assert main_stack([other, {"thread_name": "MainThread", "frames": [frame]}]) == "read (data.py:3)"
    assert main_stack([{"thread_name": None, "frames": []}]) == "no Python frame"


@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
def test_a_real_stack_is_taken_of_a_process_that_hangs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time\ndef exchange():\n    print('here', flush=True)\n    time.sleep(600)\nexchange()\n")
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        identity = identify(process.pid)
        assert identity is not None

        # It may still be on its way from the line that it printed into the sleep.
        def taken() -> list[str]:
            inquiry = Inquiry(find_py_spy())
            inquiry.begin({0: identity})
            wait_for(lambda: not inquiry.waits)
            return [line for line in inquiry.lines() if "exchange (train.py:4)" in line]

        assert wait_for(taken) == ["stack of rank 0: exchange (train.py:4) < <module> (train.py:5)"]
    finally:
        process.kill()
        process.communicate()


class Ras:
    """A RAS client port as NCCL's documentation describes it; `statuses` are given one a connection."""

    def __init__(self, statuses: Iterator[Any]) -> None:
        self.heard: list[str] = []
        self._statuses = statuses
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = ("127.0.0.1", self._server.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        for status in self._statuses:
            connection, _ = self._server.accept()
            with connection, connection.makefile("rwb") as stream:
                for line in stream:
                    self.heard.append(line.decode().strip())
                    if self.heard[-1] == "VERBOSE STATUS":
                        stream.write(json.dumps(status).encode())
                        break
                    answer = "SERVER PROTOCOL 2" if self.heard[-1].startswith("CLIENT PROTOCOL") else "OK"
                    stream.write(answer.encode() + b"\n")
                    stream.flush()
        self._server.close()


def status(*counts: int, missing: bool = False) -> dict[str, Any]:
    ranks = [
        {"rank": rank, "host": f"gpu-{rank}", "pid": 100 + rank, "collective_counts": {"AllReduce": count}}
        for rank, count in enumerate(counts)
    ]
    gone = [{"rank": len(counts), "host": "gpu-9", "pid": 7, "status": {"unresponsive": True, "considered_dead": True}}]
    communicator = {"hash": "0x5f3a", "size": len(counts) + missing, "ranks": ranks, "missing_ranks": gone if missing else []}
    return {"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [communicator]}


def test_a_rank_that_stands_still_in_two_samples_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.inquiry.BETWEEN_SAMPLES_SECONDS", 0.01)
    ras = Ras(iter([status(8, 7, 8), status(8, 7, 8)]))
    inquiry = Inquiry(address=ras.address)
    inquiry.begin({})
    found: list[str] = []
    wait_for(lambda: found.extend(inquiry.lines()) or found)
    assert found == ["communicator 0x5f3a: rank 1 on gpu-1 stands at 7 AllReduce operations in two samples, others at 8"]
    assert ras.heard[:4] == ["CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "VERBOSE STATUS"]


def test_counters_that_move_between_the_samples_are_no_hang_but_a_dead_rank_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.inquiry.BETWEEN_SAMPLES_SECONDS", 0.01)
    ras = Ras(iter([status(8, 7), status(9, 8, missing=True)]))
    inquiry = Inquiry(address=ras.address)
    inquiry.begin({})
    found: list[str] = []
    wait_for(lambda: found.extend(inquiry.lines()) or found)
    assert found == ["communicator 0x5f3a: rank 2 on gpu-9 is considered dead by nccl ras"]


def test_where_nccl_listens_is_as_the_job_says() -> None:
    assert ras_address({}) == ("localhost", 28028)
    assert ras_address({"NCCL_RAS_ADDR": "[::1]:4000"}) == ("::1", 4000)
    assert ras_address({"NCCL_RAS_ENABLE": "0"}) is None


def test_a_port_of_somebody_else_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n"), daemon=True).start()
        with pytest.raises(ValueError, match="was answered by 'HTTP"):
            read_status(("127.0.0.1", server.getsockname()[1]))


def dump(rank: int, enqueued: int) -> dict[str, Any]:
    entries = [
        {
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "profiling_name": "nccl:all_reduce",
            "input_sizes": [(4,)],
            "output_sizes": [(4,)],
            "input_dtypes": ["Float"],
            "output_dtypes": ["Float"],
            "state": "completed" if number < enqueued else "scheduled",
            "time_created_ns": number * 10**9,
            "frames": [],
            "is_p2p": False,
            "retired": number < enqueued,
        }
        for number in range(1, enqueued + 1)
    ]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    pg_status = {"0": {"last_enqueued_collective": enqueued, "last_completed_collective": enqueued - 1}}
    return {"version": "2.10", "rank": rank, "entries": entries, "pg_config": config, "pg_status": pg_status}


def test_dumps_of_a_generation_are_read_together_and_what_is_no_plain_dump_is_left(tmp_path: Path) -> None:
    variables = dump_environment({}, tmp_path)
    for rank, enqueued in ((0, 8), (1, 7)):
        Path(f"{variables['TORCH_NCCL_DEBUG_INFO_TEMP_FILE']}{rank}").write_bytes(pickle.dumps(dump(rank, enqueued), 2))
    Path(f"{variables['TORCH_FR_DUMP_TEMP_FILE']}2").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    (line,) = read_dumps(tmp_path)
    assert line.startswith("flight recorder: process group 0 (default_pg): rank 1 has enqueued 7 collectives, others 8")
    assert dump_environment({"TORCH_FR_DUMP_TEMP_FILE": "/elsewhere"}, tmp_path) == {}
