"""Two jobs on five nodes of real processes: a node is lost, then it is back, and both jobs end up where the plan said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.service.service_process import ServiceProcess

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

LAUNCHER = Path(__file__).with_name("node_launcher.py")
DEADLINE = 180.0
JOBS = {"gpt": ["n1", "n2"], "small": ["n3", "n4", "n5"]}


@dataclass
class Site:
    service: ServiceProcess
    folder: Path
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def token(self) -> str:
        return (self.service.data_dir / "admin.token").read_text().strip()

    def call(self, method: str, path: str, document: dict[str, Any] | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = httpx2.request(method, f"{self.service.url}/api/v1/{path}", json=document, headers=headers, timeout=120)
        assert answer.status_code in (200, 201), (path, answer.status_code, answer.text)
        return answer.json()

    def start(self, node: str, *jobs: str) -> None:
        command = [sys.executable, str(LAUNCHER), node, self.service.url, self.token, str(self.folder), *jobs]
        log = (self.folder / f"{node}.log").open("ab")
        self.nodes[node] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def lose(self, node: str) -> None:
        """The machine is gone: its launcher and its ranks at once."""
        process = self.nodes.pop(node)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def places(self) -> dict[str, list[str]]:
        found = {}
        for job in JOBS:
            attempts = self.call("GET", f"jobs/{job}")["attempts"]
            newest = max(attempts, key=lambda attempt: int(attempt["generation"]), default=None)
            found[job] = [] if newest is None else [rank["node"] for rank in newest["ranks"]]
        return found

    def steps(self) -> dict[str, int]:
        return {job: int(mark.read_text()) if (mark := self.folder / f"{job}.step").exists() else 0 for job in JOBS}

    def planned(self, what_if: str) -> dict[str, list[str]]:
        document = self.call("POST", "plans", {"what_if": [what_if]})
        return {task["name"]: task["proposed"] for task in document["tasks"]}

    def until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not what():
            assert time.monotonic() < deadline, (
                self.places(),
                self.steps(),
                self.call("GET", "plans"),
                self.call("GET", "incidents"),
            )
            time.sleep(0.2)

    def adds_up(self, job: str) -> bool:
        """Whether the job's account fills the wall clock since its first rank came up, within 1 %."""
        account = self.call("GET", f"jobs/{job}/account")
        wall = time.time() - (self.folder / f"{job}.0.port").stat().st_mtime
        assert account["losses"] and sum(account["seconds"].values()) == pytest.approx(account["wall_seconds"])
        return bool(account["wall_seconds"] == pytest.approx(wall, rel=0.01))

    def trains_on(self, places: dict[str, list[str]]) -> None:
        """Both jobs come to run there, and step."""
        self.until(lambda: self.places() == places)
        before = self.steps()
        self.until(lambda: all(step > before[job] + 2 for job, step in self.steps().items()))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ServiceProcess(tmp_path / "data", environment={"PITSTOP_LEASE_SECONDS": "5"}) as service:
        folder = tmp_path / "site"
        folder.mkdir()
        opened = Site(service, folder)
        try:
            yield opened
        finally:
            for node in list(opened.nodes):
                opened.lose(node)


def test_both_jobs_end_up_where_the_plan_says_when_a_node_is_lost_and_when_it_is_back(site: Site) -> None:
    site.call("PUT", "modes", {"modes": {"reconfigure": "auto"}, "why": "trial"})
    for job, nodes in JOBS.items():
        flops = {"gpt": 9e12, "small": 1e12}[job]
        document = {"job": job, "owner": "ann", "ranks": len(nodes), "nodes": nodes, "layout": {"flops_per_step": flops}}
        site.call("POST", "jobs", document | {"min_ranks": {"gpt": 2, "small": 1}[job]})
    for job, nodes in JOBS.items():
        for node in nodes:
            site.start(node, f"{job}:{','.join(nodes)}")
    site.trains_on(JOBS)

    after_loss = site.planned("node n2 lost")
    assert after_loss == {"gpt": ["n1", "n5"], "small": ["n3", "n4"]}
    site.lose("n2")
    site.trains_on(after_loss)

    site.until(lambda: all(plan["state"] != "acting" for plan in site.call("GET", "plans")["items"]))
    after_return = site.planned("node n2 back")
    assert after_return == {"gpt": ["n1", "n5"], "small": ["n3", "n4", "n2"]}
    site.start("n2")
    site.trains_on(after_return)

    site.until(lambda: all(plan["state"] == "verified" for plan in site.call("GET", "plans")["items"]))
    # It is drawn up to the newest heartbeat.
    site.until(lambda: all(map(site.adds_up, JOBS)))
    plans = site.call("GET", "plans")["items"]
    assert plans[-1]["cause"] == "node n2 lost" and [part["job"] for part in plans[0]["parts"]] == ["small"]
