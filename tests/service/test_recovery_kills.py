"""kill -9 of the real service in the middle of recoveries: all complete, and no action is doubled in the world."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import httpx2
import pytest

from tests.service.scripted_agent import ScriptedAgent
from tests.service.service_process import ServiceProcess

PATIENCE_SECONDS = 60.0


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


def kill_at_random(service: ServiceProcess, client: PatientClient, chance: random.Random, recoveries: int) -> None:
    """`recoveries` jobs fail one after the other; during each the service is killed at a random moment and started again."""
    for number in range(recoveries):
        agent = launch(client, f"job{number}")
        delay = chance.uniform(0.0, 0.15)

        def kill(delay: float = delay) -> None:
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
        kill_at_random(service, PatientClient(service.url), random.Random(7), 2)


@pytest.mark.soak
def test_kills_at_random_points_double_nothing(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data") as service:
        kills = max(3, round(50 * float(os.environ.get("SCALE", "1"))))
        kill_at_random(service, PatientClient(service.url), random.Random(11), kills)
