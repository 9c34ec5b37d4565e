"""kill -9 of the real service in the middle of recoveries: all complete, and no action is doubled in the world.

The world is what scripted agents did, and what a site's own tool wrote down of the calls that took nodes out.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from service.access import Role, create_token
from service.store import Store
from tests.service.scripted_agent import ScriptedAgent
from tests.service.service_process import ServiceProcess
from tests.service.test_node_returns import TOOL

PATIENCE_SECONDS = 120.0
# As far as a recovery has come.
STAGES = {"detected": 0, "planned": 1, "acted": 2, "verified": 3, "stopped": 3}
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus."


class PatientClient:
    """Asks again while the service is away, as agents do."""

    def __init__(self, service: ServiceProcess) -> None:
        token = (service.data_dir / "admin.token").read_text().strip()
        self.client = httpx2.Client(base_url=service.url, timeout=10, headers={"Authorization": f"Bearer {token}"})

    def get(self, url: str, **options: object) -> httpx2.Response:
        return self.ask("GET", url, **options)

    def post(self, url: str, **options: object) -> httpx2.Response:
        return self.ask("POST", url, **options)

    def ask(self, method: str, url: str, **options: object) -> httpx2.Response:
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


class TwoNodes(ScriptedAgent):
    """Rank 0 runs on the agent's own node, rank 1 on `other`."""

    @property
    def other(self) -> str:
        return f"{self.node}-other"

    def register(self, **fields: Any) -> None:
        super().register(nodes=[self.node, self.other], min_ranks=1, **fields)
        ScriptedAgent(self.client, node=self.other).lease()

    def start(self, cause: str = "start") -> None:
        self.running = True
        places = [self.node] if self.generation else [self.node, self.other]
        self.ranks = len(places)
        ranks = [{"rank": rank, "local_rank": 0, "node": node, "pid": 100} for rank, node in enumerate(places)]
        document = {"attempt": self.generation, "generation": self.generation, "cause": cause, "ranks": ranks}
        self.post(f"jobs/{self.job}/attempts", document)

    def lose_gpu(self, token: str) -> None:
        """The kernel of the other node says that a GPU is gone, and rank 1 dies of it. `token`: of that node's agent."""
        line = {"node": self.other, "trust": "node", "path": "kernel", "number": 1, "time": time.time(), "line": XID}
        headers = {"Authorization": f"Bearer {token}"}
        assert self.client.post("/api/v1/logs", content=json.dumps(line), headers=headers).status_code == 200
        self.fail(failed=[{"rank": 1, "node": self.other, "exit_code": 1, "signal": None, "error": None}])


@dataclass(frozen=True)
class Kind:
    """A failure, and what one recovery of it does in the world. `seconds`: within which the service is killed after a stage."""

    agent: type[ScriptedAgent]
    fail: Callable[[Any, str], object]
    restarts: int = 1
    stops: int = 0
    cordons: int = 0
    seconds: float = 0.05


def lose_a_rank(agent: ScriptedAgent, _token: str) -> None:
    agent.fail()


def meet_a_bug(agent: ScriptedAgent, _token: str) -> None:
    agent.fail(failed=[{"rank": 1, "node": agent.node, "exit_code": 1, "signal": None, "error": "KeyError: 'labels'"}])


KILLED = Kind(ScriptedAgent, lose_a_rank)
BUG = Kind(ScriptedAgent, meet_a_bug, restarts=0, stops=1)
# The site's tool is called about a second after the decision.
GPU_LOST = Kind(TwoNodes, TwoNodes.lose_gpu, cordons=1, seconds=1.5)


class World:
    """A site's tool and what it wrote down. `drivers`: the file that names it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.drivers, tool = folder / "world", folder / "drivers.yaml", folder / "tool.py"
        self.folder.mkdir()
        tool.write_text(TOOL)
        start = [sys.executable, str(tool), str(self.folder)]
        calls = {"state": ["{node}"], "cordon": ["{node}", "{why}"], "uncordon": ["{node}"]}
        # JSON is YAML.
        self.drivers.write_text(json.dumps({name: {"command": [*start, name, *words]} for name, words in calls.items()}))

    def cordons(self, node: str) -> int:
        log = self.folder / "log"
        return 0 if not log.exists() else sum(line.split()[:2] == ["cordon", node] for line in log.read_text().splitlines())


def token_of_agents(service: ServiceProcess, nodes: Sequence[str]) -> str:
    """One under which the agents of `nodes` vouch for them."""
    store = Store(f"sqlite:///{service.data_dir / 'pitstop.sqlite'}")
    try:
        with store.writing() as session:
            return create_token(session, "agents", Role.NODE, binding=tuple(nodes), now=time.time(), by="test")
    finally:
        store.close()


def recover(agent: ScriptedAgent, kind: Kind, token: str) -> None:
    """One failure of the agent's job, from the report to steps past it, or to its stop."""
    kind.fail(agent, token)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not agent.restarts and not agent.stops:
        agent.lease()
        agent.obey(wait=1)
        assert time.monotonic() < deadline, "no command came"
    if agent.restarts:
        agent.start("restart")
    for _ in range(3 if agent.restarts else 0):
        agent.heartbeat(step=agent.step + 1)


def verified(client: PatientClient, incidents: int) -> bool:
    items = client.get("/api/v1/incidents?limit=500").json()["items"]
    return len(items) == incidents and all(item["state"] == "verified" for item in items)


def launch(client: PatientClient, kind: Kind, job: str) -> ScriptedAgent:
    agent = kind.agent(client, job=job, node=f"node-{job}")
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
            if row is not None and STAGES.get(row[0], 0) >= STAGES[stage]:
                return
            time.sleep(0.001)
    raise AssertionError(f"{job} did not come to {stage}")


def kill_at_random(folder: Path, chance: random.Random, points: Sequence[tuple[Kind, str]]) -> None:
    """One job after the other fails; as soon as its recovery is at its stage, and a little later, the service is killed."""
    world = World(folder)
    with ServiceProcess(folder / "data", environment={"PITSTOP_DRIVERS_FILE": str(world.drivers)}) as service:
        client = PatientClient(service)
        assert client.ask("PUT", "/api/v1/modes", json={"modes": {"isolate": "auto"}, "why": "trial"}).status_code == 200
        limits = {"share": 1.0, "per_rack": len(points) + 1, "why": "trial"}
        assert client.ask("PUT", "/api/v1/breaker", json=limits).status_code == 200
        token = token_of_agents(service, [f"node-job{number}-other" for number in range(len(points))])
        agents = []
        for number, (kind, stage) in enumerate(points):
            agent = launch(client, kind, f"job{number}")

            def kill(job: str = agent.job, stage: str = stage, delay: float = chance.uniform(0.0, kind.seconds)) -> None:
                wait_for_stage(service, job, stage)
                time.sleep(delay)
                service.kill()
                service.start()

            killer = threading.Thread(target=kill)
            killer.start()
            try:
                recover(agent, kind, token)
            finally:
                killer.join()
            agents.append(agent)
        deadline = time.monotonic() + PATIENCE_SECONDS
        taken_out = [agent.other for agent in agents if isinstance(agent, TwoNodes)]
        while not verified(client, len(points)) or not all(map(world.cordons, taken_out)):
            assert time.monotonic() < deadline, client.get("/api/v1/incidents").json()
            time.sleep(0.1)
        for agent, (kind, stage) in zip(agents, points, strict=True):
            agent.obey()
            did = len(agent.restarts), len(agent.stops), world.cordons(f"{agent.node}-other")
            assert did == (kind.restarts, kind.stops, kind.cordons), (agent.job, stage)


@pytest.mark.acceptance
def test_a_service_killed_in_mid_recovery_completes_it_once(tmp_path: Path) -> None:
    kill_at_random(tmp_path, random.Random(7), [(KILLED, "detected"), (GPU_LOST, "planned")])


@pytest.mark.soak
def test_kills_at_random_points_double_nothing(tmp_path: Path) -> None:
    # 50 at full size; each takes a start of the service, so that a tenth gets few.
    kills = max(3, round(50 * float(os.environ.get("SCALE", "1")) ** 1.3))
    chance = random.Random(11)
    kill_at_random(
        tmp_path, chance, [(chance.choice((KILLED, BUG, GPU_LOST)), chance.choice(tuple(STAGES)[:4])) for _ in range(kills)]
    )
