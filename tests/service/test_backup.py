"""A backup taken while lines come in, brought back: everything acknowledged before it is there once, and incidents open."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tests.service.postgres import postgres
from tests.service.service_process import ServiceProcess
from tests.service.test_ingest_kills import Sender, everything

pytestmark = pytest.mark.acceptance


def back_up_under_load(service: ServiceProcess, take: Callable[[], None]) -> tuple[str, list[str], set[str]]:
    """(an incident, the lines acknowledged before the backup began, all that were ever sent)"""
    failed = {"attempt": 0, "generation": 0, "idempotency_key": "k", "failed": [{"rank": 0, "node": "n1", "exit_code": 1}]}
    with httpx2.Client(base_url=service.url, timeout=120) as client:
        client.post("/api/v1/jobs", json={"job": "train", "ranks": 1}).raise_for_status()
        incident = client.post("/api/v1/jobs/train/failures", json=failed).raise_for_status().json()["incident"]
    sender = Sender(service.url, "agent", "ndjson")
    sender.start()
    enough = threading.Event()
    while not sender.acknowledged and not enough.wait(0.01):
        assert sender.is_alive()
    acknowledged = list(sender.acknowledged)
    take()
    sender.stopping.set()
    sender.join(timeout=120)
    return incident, acknowledged, sender.sent


def check(service: ServiceProcess, incident: str, acknowledged: list[str], sent: set[str]) -> None:
    counted = Counter(everything(service.url))
    assert [line for line in acknowledged if counted[line] != 1] == []
    assert set(counted.values()) == {1} and counted.keys() <= sent
    document = httpx2.get(f"{service.url}/api/v1/incidents/{incident}", timeout=120).raise_for_status().json()
    assert (document["job"], len(document["failures"])) == ("train", 1)


def test_a_sqlite_backup_is_one_moment_of_a_database_in_use(tmp_path: Path) -> None:
    saved = tmp_path / "saved.sqlite"
    command = [sys.executable, "-m", "pitstop_entry", "backup", str(saved), "--data-dir", str(tmp_path / "data")]
    with ServiceProcess(tmp_path / "data") as service:
        known = back_up_under_load(service, lambda: subprocess.run(command, check=True, capture_output=True) and None)
    again = subprocess.run(command, capture_output=True, text=True)
    assert (again.returncode, "exists" in again.stderr) == (2, True)
    restored = tmp_path / "restored"
    restored.mkdir()
    saved.rename(restored / "pitstop.sqlite")
    with ServiceProcess(restored) as service:
        check(service, *known)


def test_a_postgresql_dump_brings_everything_back(tmp_path: Path) -> None:
    with postgres() as url:
        dump, fresh = str(tmp_path / "saved.dump"), url.removesuffix("/postgres") + "/fresh"
        with ServiceProcess(tmp_path / "data", environment={"PITSTOP_DATABASE": url}) as service:
            known = back_up_under_load(
                service, lambda: subprocess.run(["pg_dump", "--format=custom", "-f", dump, url], check=True) and None
            )
        subprocess.run(["psql", "-q", "-c", "CREATE DATABASE fresh", url], check=True)
        subprocess.run(["pg_restore", "-d", fresh, dump], check=True)
        with ServiceProcess(tmp_path / "other", environment={"PITSTOP_DATABASE": fresh}) as service:
            check(service, *known)
