"""The thread of the whole house, on real processes: what an operator may rely on when parts of it die."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.stories.observing import alive, directive_of, processes_of, settled
from cli.stories.stage import Stage

pytestmark = pytest.mark.acceptance
# For each thing that is waited for; on a busy machine an interpreter alone takes seconds to start.
PATIENCE = 180.0
SAMPLES = Path(__file__).parents[3] / "shared" / "reference" / "samples"


def post(stage: Stage, path: str, body: bytes, token: str | None = None, kind: str = "application/json") -> tuple[int, Any]:
    """POST `body`; the status and the parsed answer."""
    if token is None:
        token = (stage.data_directory / "admin.token").read_text(encoding="utf-8").strip()
    headers = {"Content-Type": kind, "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(stage.url + path, data=body, headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            raw = answer.read()
            return answer.status, json.loads(raw) if raw else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.skipif(not SAMPLES.exists(), reason="the samples of a real Alertmanager are not beside this checkout")
def test_what_a_real_alertmanager_posted_becomes_one_incident_per_alert(stage: Stage) -> None:
    stage.serve()
    for name in ("alertmanager_firing", "alertmanager_direct", "alertmanager_firing"):
        status, _ = post(stage, "/api/v1/alerts/alertmanager", (SAMPLES / f"{name}.json").read_bytes())
        assert status < 300
    listed = stage.wait_for("two incidents", lambda: two_incidents(stage), PATIENCE)
    assert {incident["job"]: incident["occurrences"] for incident in listed} == {"42": 2, "7": 1}

    post(stage, "/api/v1/alerts/alertmanager", (SAMPLES / "alertmanager_resolved.json").read_bytes())
    closed = stage.wait_for("the resolved alert to close its incident", lambda: closed_incident(stage, "42"), PATIENCE)
    assert any("resolved" in f"{entry['kind']} {entry['text']}".lower() for entry in closed["timeline"])
    assert len(stage.get("/api/v1/incidents")["items"]) == 2


def two_incidents(stage: Stage) -> list[dict[str, Any]] | None:
    items = stage.get("/api/v1/incidents")["items"]
    return items if len(items) == 2 and sum(item["occurrences"] for item in items) == 3 else None


def closed_incident(stage: Stage, job: str) -> dict[str, Any] | None:
    incident = stage.incident_of(job)
    return incident if incident and incident["state"] == "resolved" else None


def test_a_recovery_survives_kill_9_of_the_service_and_completes_once(
    stage: Stage, launch_stepper: Callable[..., Any], finish: Callable[[str], None]
) -> None:
    service = stage.serve()
    launcher = launch_stepper("survivor")
    stage.wait_for("some steps", lambda: stage.step_of("survivor") >= 10, PATIENCE)
    os.kill(processes_of(stage, "survivor")[1], signal.SIGKILL)
    stage.wait_for("an incident", lambda: stage.incident_of("survivor"), PATIENCE)
    service.kill()
    service.wait()
    stage.serve()
    incident = stage.wait_for("the recovery to be verified", lambda: settled(stage, "survivor"), PATIENCE)
    # An agent that hears nothing for 5 s acts by itself: then there is nothing left for the service to order.
    assert directive_of(incident) in ("restart", "none")
    assert sum(recovery["relaunches"] for recovery in incident["recoveries"]) <= 1
    attempts = stage.get("/api/v1/jobs/survivor")["attempts"]
    assert sorted(attempt["generation"] for attempt in attempts) == [0, 1]
    finish("survivor")
    assert launcher.wait(timeout=PATIENCE) == 0


def test_a_job_goes_on_untouched_when_the_service_is_killed_and_stays_away(
    stage: Stage, launch_stepper: Callable[..., Any], finish: Callable[[str], None]
) -> None:
    service = stage.serve()
    launcher = launch_stepper("alone")
    stage.wait_for("some steps", lambda: stage.step_of("alone") >= 10, PATIENCE)
    before = processes_of(stage, "alone")
    service.kill()
    service.wait()
    step = max(marks_of(stage, "alone"))
    log = stage.folder / "alone.log"
    stage.wait_for("word that it goes on", lambda: "going on without it" in log.read_text(encoding="utf-8"), PATIENCE)
    stage.wait_for("100 steps more", lambda: min(marks_of(stage, "alone")) >= step + 100, PATIENCE)
    assert all(alive(pid) for pid in before.values())
    finish("alone")
    assert launcher.wait(timeout=PATIENCE) == 0
    assert not any(alive(pid) for pid in before.values())


def marks_of(stage: Stage, job: str) -> list[int]:
    """The last step of each rank, as it wrote it down."""
    return [int((stage.folder / f"{job}.mark.{rank}").read_text()) for rank in (0, 1)]


def test_ranks_outlive_a_killed_launcher_and_the_next_one_takes_them_over(
    stage: Stage, launch_stepper: Callable[..., Any], finish: Callable[[str], None]
) -> None:
    stage.serve()
    first = launch_stepper("orphan")
    stage.wait_for("some steps", lambda: stage.step_of("orphan") >= 10, PATIENCE)
    before = processes_of(stage, "orphan")
    first.kill()
    first.wait()
    step = max(marks_of(stage, "orphan"))
    stage.wait_for("the orphaned ranks to go on", lambda: min(marks_of(stage, "orphan")) > step + 5, PATIENCE)
    second = launch_stepper("orphan")
    stage.wait_for("steps under the new launcher", lambda: stage.step_of("orphan") > step + 20, PATIENCE)
    assert processes_of(stage, "orphan") == before
    assert all(alive(pid) for pid in before.values())
    finish("orphan")
    assert second.wait(timeout=PATIENCE) == 0
    assert not any(alive(pid) for pid in before.values())
    lines = stage.get("/api/v1/logs?job=orphan&rank=0")["items"]
    assert len(lines) == len({(line["path"], line["number"]) for line in lines})


BAD_INPUT = [
    ("/loki/api/v1/push", b"{", "application/json", 400),
    ("/loki/api/v1/push", b"\xff\xff not snappy", "application/x-protobuf", 400),
    ("/api/v1/alerts/alertmanager", b'{"version": "3", "alerts": []}', "application/json", 422),
    ("/api/v1/alerts/alertmanager", b"[]", "application/json", 422),
    ("/api/v1/jobs/nobody/failures?wait=0", b'{"attempt": 1}', "application/json", 422),
    ("/api/v1/logs", b'{"line": 1}\nnot json\n', "application/x-ndjson", 422),
]


def test_bad_input_on_each_door_gets_one_clear_error_and_stores_nothing(stage: Stage) -> None:
    stage.serve()
    for path, body, kind, expected in BAD_INPUT:
        status, problem = post(stage, path, body, kind=kind)
        assert 400 <= status < 500 and status in (400, expected), (path, status, problem)
        assert problem["title"] and problem["detail"], (path, problem)
    status, problem = post(stage, "/api/v1/jobs", b'{"job": "x", "ranks": 1}', token="not-a-token")
    assert status == 401 and problem["title"]
    assert stage.get("/api/v1/incidents")["total"] == 0
    assert stage.get("/api/v1/logs?job=nobody")["items"] == []


def test_an_unreadable_file_gets_one_line_and_exit_status_2(stage: Stage) -> None:
    process = stage.start("diagnose", "diagnose", str(stage.folder / "absent.log"))
    assert process.wait(timeout=PATIENCE) == 2
    lines = (stage.folder / "diagnose.log").read_text(encoding="utf-8").strip().splitlines()
    assert len(lines) == 1 and "absent.log" in lines[0]


@pytest.mark.timeout(600)
def test_the_demo_ends_by_itself_verifies_all_faults_and_leaves_no_process(stage: Stage) -> None:
    folder = stage.folder / "demo"
    began = time.time()
    process = stage.start("demo", "demo", "--folder", str(folder))
    status = process.wait(timeout=580)
    output = (stage.folder / "demo.log").read_text(encoding="utf-8")
    assert status == 0, output
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["ok"] is True
    told = {fault["kind"]: (fault["directive"], fault["severity"]) for fault in report["faults"]}
    assert told.pop("stop_rank")[0] in ("restart", "retry")
    assert told == {"kill_rank": ("restart", "SEV2"), "lose_node": ("shrink", "SEV1"), "lasting_exception": ("stop", "NONE")}
    assert all(fault["verified"] for fault in report["faults"])
    assert all(fault["step_after"] > fault["step_before"] for fault in report["faults"][:3])
    assert report["faults"][3]["step_after"] is None
    assert processes_naming(str(folder), since=began) == []


def processes_naming(text: str, since: float) -> list[str]:
    """Command lines of living processes that name `text`, and began no earlier than `since`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(int(entry.name)):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                started = entry.stat().st_mtime
            except OSError:
                continue
            if text in command and started >= since - 1 and int(entry.name) != os.getpid():
                found.append(command)
    return found
