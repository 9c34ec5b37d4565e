"""kill -9 of the real service in the middle of recoveries: all complete, and no action is doubled in the world."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from tests.service.scripted_agent import ScriptedAgent
from tests.service.service_process import ServiceProcess

PATIENCE_SECONDS = 120.0
STAGES = ("detected", "planned", "acted", "verified")


class PatientClient:
    """Asks again while the service is away, as agents do."""

    def __init__(self, url: str) -> None:
        self.client = httpx2.Client(base_url=url, timeout=10)

    def get(self, url: str, **options: object) -> httpx2.Response:
        return self._patiently("GET", url, **options)

    def post(self, url: str, **options: object) -> httpx2.Response:
        return self._patiently("POST", url, **options)

    def _patiently(self, method: str, url: str, **options: object) -> httpx2.Response:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                answer = self.client.request(method, url, **options)  # type: ignore[arg-type]
                if answer.status_code != 503:
                    return answer
            except httpx2.HTTPError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.02)


def recover(agent: ScriptedAgent) -> int:
    """One failure of the agent's job, from the report to steps past it; the generation that goes on."""
    before = agent.generation
    agent.fail()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while agent.generation == before:
        agent.lease()
        agent.obey(wait=1)
        assert time.monotonic() < deadline, "no command came"
    agent.start("restart")
    for _ in range(3):
        agent.heartbeat(step=agent.step + 1)
    return agent.generation


def verified(client: PatientClient, incidents: int) -> bool:
    items = client.get("/api/v1/incidents?limit=500").json()["items"]
    return len(items) == incidents and all(item["state"] == "verified" for item in items)


def launch(client: PatientClient, job: str) -> ScriptedAgent:
    agent = ScriptedAgent(client, job=job, node=f"node-{job}")
    agent.register()
    agent.start()
    agent.heartbeat(step=40)
    return agent


def wait_for_stage(service: ServiceProcess, job: str, stage: str) -> None:
    """Until the stored recovery of `job` has come as far as `stage`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with closing(sqlite3.connect(f"file:{service.data_dir / 'pitstop.sqlite'}?mode=ro", uri=True)) as database:
        while time.monotonic() < deadline:
            row = database.execute("select stage from recoveries where job = ?", (job,)).fetchone()
            if row is not None and STAGES.index(row[0]) >= STAGES.index(stage):
                return
            time.sleep(0.001)
    raise AssertionError(f"{job} did not come to {stage}")


def kill_at_random(service: ServiceProcess, client: PatientClient, chance: random.Random, stages: Sequence[str]) -> None:
    """One job after the other fails; as soon as its recovery is at its stage, and a little later, the service is killed."""
    recoveries = len(stages)
    for number, stage in enumerate(stages):
        agent = launch(client, f"job{number}")

        def kill(job: str = agent.job, stage: str = stage, delay: float = chance.uniform(0.0, 0.05)) -> None:
            wait_for_stage(service, job, stage)
            time.sleep(delay)
            service.kill()
            service.start()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            assert recover(agent) == 1
        finally:
            killer.join()
        assert agent.restarts == [1]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not verified(client, recoveries):
        assert time.monotonic() < deadline, client.get("/api/v1/incidents").json()
        time.sleep(0.1)


@pytest.mark.acceptance
def test_a_service_killed_in_mid_recovery_completes_it_once(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data") as service:
        kill_at_random(service, PatientClient(service.url), random.Random(7), ["detected", "planned"])


@pytest.mark.soak
def test_kills_at_random_points_double_nothing(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data") as service:
        kills = max(3, round(50 * float(os.environ.get("SCALE", "1"))))
        chance = random.Random(11)
        kill_at_random(service, PatientClient(service.url), chance, chance.choices(STAGES, k=kills))
