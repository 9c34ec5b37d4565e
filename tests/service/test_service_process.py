"""The real service as a process: doors, restarts, kill -9, the end."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.service.service_process import ServiceProcess

pytestmark = pytest.mark.acceptance

SAMPLES = Path(__file__).parents[3] / "shared" / "reference" / "samples"


def batch(*lines: str) -> bytes:
    records = ({"job": "train", "rank": 0, "number": number, "time": 1.0, "line": line} for number, line in enumerate(lines, 1))
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def next_event(url: str, last: str | None, kind: str) -> str:
    """The id of the next event of `kind` on the stream."""
    headers = {"Last-Event-ID": last} if last is not None else {}
    with httpx2.stream("GET", f"{url}/api/v1/events", headers=headers, timeout=120) as answer:
        number = ""
        for line in answer.iter_lines():
            if line.startswith("id: "):
                number = line[4:]
            elif line == f"event: {kind}":
                return number
    raise AssertionError("the stream ended")


def test_what_was_acknowledged_survives_kill_9_and_events_resume(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data") as service:
        ours = psutil.Process(service.process.pid if service.process else 0)
        assert httpx2.post(f"{service.url}/api/v1/jobs", json={"job": "train"}, timeout=120).status_code == 201
        seen = next_event(service.url, "0", "job.registered")
        answer = httpx2.post(f"{service.url}/api/v1/logs", content=batch("a", "b"), headers={"Pitstop-Batch": "1"}, timeout=120)
        assert answer.json()["kept"] == 2
        if SAMPLES.is_dir():
            for name in ("firing", "direct", "resolved"):
                body = (SAMPLES / f"alertmanager_{name}.json").read_bytes()
                assert httpx2.post(f"{service.url}/api/v1/alerts/alertmanager", content=body, timeout=120).status_code == 200
        children = ours.children(recursive=True)
        service.kill()
        psutil.wait_procs(children, timeout=120)
        assert not any(child.is_running() for child in children)

        service.start()
        assert [item["line"] for item in httpx2.get(f"{service.url}/api/v1/logs", timeout=120).json()["items"]] == ["a", "b"]
        again = httpx2.post(f"{service.url}/api/v1/logs", content=batch("a", "b"), headers={"Pitstop-Batch": "1"}, timeout=120)
        assert again.json() == {"accepted": 2, "kept": 2, "dropped": 0, "duplicate": True}
        httpx2.post(f"{service.url}/api/v1/jobs", json={"job": "other"}, timeout=120)
        assert int(next_event(service.url, seen, "job.registered")) > int(seen)
        if SAMPLES.is_dir():
            found = httpx2.get(f"{service.url}/api/v1/incidents", timeout=120).json()
            assert found["total"] == 2
            assert {(item["job"], item["state"]) for item in found["items"]} == {("42", "resolved"), ("7", "detected")}


def test_sigterm_ends_it_with_open_streams_in_time_and_with_status_0(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data") as service:
        process = service.process
        assert process is not None
        with httpx2.stream("GET", f"{service.url}/api/v1/events", timeout=120) as stream:
            assert stream.status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=120) == 0
    assert "Traceback" not in service.log()


def test_a_matcher_that_is_killed_is_replaced_and_its_body_is_refused_with_503(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data") as service:
        url = f"{service.url}/api/v1/logs"
        assert httpx2.post(url, content=batch("before"), timeout=120).status_code == 200
        parent = psutil.Process(service.process.pid if service.process else 0)
        matcher = next(child for child in parent.children() if "spawn_main" in " ".join(child.cmdline()))
        os.kill(matcher.pid, signal.SIGKILL)
        answers = []
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and (not answers or answers[-1] != 200):
            answer = httpx2.post(url, content=batch("after"), timeout=120)
            answers.append(answer.status_code)
            if answer.status_code == 503:
                assert answer.headers["retry-after"] == "1"
        assert answers[-1] == 200 and set(answers) <= {200, 503}
        assert [item["line"] for item in httpx2.get(url, timeout=120).json()["items"]] == ["before", "after"]
