"""Plans in the service: drawn from what is reported, proposed when that changes, approved, and carried out on several jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.app import create_app
from service.ingest.matching import MatcherPool
from service.plan_state import note_step_times, restricted, stored_cluster
from service.settings import Settings
from service.store.plans import StepTime

DEADLINE = 90.0


@dataclass
class Cluster:
    """Nodes with agents and jobs on them, over the real API; one rank a node."""

    client: TestClient
    admin: dict[str, str]
    after: dict[str, int] = field(default_factory=dict)

    def call(self, method: str, path: str, *expected: int, **options: Any) -> Any:
        answer = self.client.request(method, f"/api/v1/{path}", headers=self.admin, **options)
        assert answer.status_code in (expected or (200, 201)), (path, answer.status_code, answer.text)
        return answer.json()

    def lease(self, *nodes: str) -> None:
        for node in nodes:
            document = {"boot_id": "b", "agent_id": "a", "aliases": [], "versions": {}, "clock": time.time()}
            self.call("POST", f"nodes/{node}/lease", json=document)

    def start(self, job: str, *nodes: str, generation: int = 0, seconds: float | None = 1.0, **fields: Any) -> None:
        registration = {
            "job": job,
            "owner": "ann",
            "ranks": len(nodes),
            "nodes": list(nodes),
            "min_ranks": 1,
            "layout": {},
        } | fields
        self.call("POST", "jobs", json=registration)
        self.attempt(job, nodes, generation, seconds)

    def attempt(self, job: str, nodes: tuple[str, ...], generation: int, seconds: float | None = 1.0, step: int = 10) -> None:
        ranks = [{"rank": rank, "local_rank": 0, "node": node, "pid": 1} for rank, node in enumerate(nodes)]
        report = {"attempt": generation, "generation": generation, "cause": "start", "ranks": ranks}
        self.call("POST", f"jobs/{job}/attempts", json=report)
        beat = {"attempt": generation, "generation": generation}
        told = [{"rank": rank, "step": step, "state": "running", "step_seconds": seconds} for rank in range(len(nodes))]
        self.call("POST", f"jobs/{job}/heartbeat", json=beat | {"ranks": told})

    def commands(self, node: str) -> list[dict[str, Any]]:
        return list(self.call("GET", f"nodes/{node}/commands?after={self.after.get(node, 0)}&wait=0")["items"])

    def obey(self, node: str, generation: int) -> list[str]:
        """Answer that every command to the node is done; their kinds."""
        kinds = []
        for command in self.commands(node):
            answer = {"status": "done", "generation": generation, "detail": "done"}
            self.call("POST", f"nodes/{node}/commands/{command['id']}/result", json=answer)
            self.after[node] = command["id"]
            kinds.append(command["kind"])
        return kinds

    def until(self, what: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            found = what()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError("it did not come to that")

    def measure(self, *jobs: str) -> None:
        """Have the step times of `jobs` noted, as the duty does: what is not measured yet is compared by a guess."""
        store = self.client.app.state.pitstop.store  # type: ignore[attr-defined]

        def measured() -> bool:
            note_step_times(store, time.time())
            with store.reading() as session:
                return set(jobs) <= set(session.scalars(select(StepTime.job)))

        self.until(measured)

    def plan(self, *states: str) -> dict[str, Any] | None:
        newest: dict[str, Any]
        for newest in self.call("GET", "plans")["items"]:
            if newest["state"] in states:
                return newest
        return None


@pytest.fixture
def cluster(settings: Settings, pool: MatcherPool) -> Iterator[Cluster]:
    settings = settings.model_copy(update={"lease_seconds": 600.0})
    with TestClient(create_app(settings, shared_pool=pool), base_url="http://localhost", client=("127.0.0.1", 50000)) as client:
        token = (settings.data_dir / "admin.token").read_text().strip()
        yield Cluster(client, {"Authorization": f"Bearer {token}"})


def two_jobs(cluster: Cluster) -> None:
    """gpt on n1 and n2 needs both; small runs on n3, n4, n5 and can do with one."""
    cluster.lease("n1", "n2", "n3", "n4", "n5")
    cluster.start("gpt", "n1", "n2", min_ranks=2, layout={"flops_per_step": 4e12})
    cluster.start("small", "n3", "n4", "n5", layout={"flops_per_step": 1e12})
    cluster.measure("gpt", "small")


def test_what_if_is_answered_from_what_jobs_report_and_changes_nothing(cluster: Cluster) -> None:
    two_jobs(cluster)
    document = cluster.call("POST", "plans", json={"what_if": ["node n2 lost"]})
    proposed = {task["name"]: task["proposed"] for task in document["tasks"]}
    assert proposed == {"gpt": ["n1", "n5"], "small": ["n3", "n4"]}
    assert document["chosen"] == "plan" and document["waf"]["gained"] > 0
    assert {item["kind"] for item in document["alternatives"]} >= {"take_spare", "take_from_other", "wait_for_repair"}
    assert cluster.call("GET", "plans")["total"] == 0
    assert not any(cluster.commands(node) for node in ("n1", "n2", "n3", "n4", "n5"))


def test_bad_questions_are_refused_with_what_to_do(cluster: Cluster) -> None:
    two_jobs(cluster)
    assert "node NAME lost" in cluster.call("POST", "plans", 422, json={"what_if": ["n2 lost"]})["detail"]
    assert "no usable node" in cluster.call("POST", "plans", 422, json={"what_if": ["node n9 lost"]})["detail"]
    cluster.call("GET", "plans/7", 404)
    cluster.call("POST", "plans/7/approve", 404)


def test_step_times_are_measured_by_size_and_a_job_that_owns_no_other_size_is_held(cluster: Cluster) -> None:
    cluster.lease("n1", "n2")
    cluster.start("rigid", "n1", min_ranks=None, layout=None)
    cluster.start("gpt", "n2", ranks=2, layout={"flops_per_step": 3e12}, seconds=2.0)

    def measured() -> bool:
        document = cluster.call("POST", "plans", json={})
        tasks = {task["name"]: task for task in document["tasks"]}
        assert "min_ranks" in tasks["rigid"]["held"]
        return bool(tasks["gpt"]["waf_current"] == 1.5e12)

    assert cluster.until(measured)


def test_a_node_that_comes_is_a_reason_to_propose_and_an_approved_plan_is_carried_out(cluster: Cluster) -> None:
    cluster.lease("n1", "n2", "n3")
    cluster.start("gpt", "n1", "n2", ranks=3, layout={"flops_per_step": 3e12})
    plan = cluster.until(lambda: cluster.plan("suggested"))
    assert plan["parts"][0] | {"recovery": None} == {
        "job": "gpt",
        "nodes": ["n1", "n2", "n3"],
        "after": [],
        "recovery": None,
        "hit": False,
    }
    page = cluster.client.get("/plan", headers=cluster.admin).text
    assert f"Approve plan {plan['id']}" in page and "gpt: n1, n2, n3" in page
    approved = cluster.call("POST", f"plans/{plan['id']}/approve", json={"comment": "go"})
    assert approved["state"] == "acting" and approved["decided_by"] == "admin"
    cluster.call("POST", f"plans/{plan['id']}/approve", 409)
    command = cluster.until(lambda: cluster.commands("n3"))[0]
    assert (command["kind"], command["args"]["nodes"], command["generation"]) == ("restart_ranks", ["n1", "n2", "n3"], 1)
    for node in ("n1", "n2", "n3"):
        assert cluster.obey(node, 1) == ["restart_ranks"]
    cluster.attempt("gpt", ("n1", "n2", "n3"), 1, step=11)
    assert cluster.until(lambda: cluster.plan("verified"))["id"] == plan["id"]
    incident = cluster.call("GET", "incidents")["items"][0]
    assert (incident["kind"], incident["reason"], incident["job"]) == ("plan", "job_preempted", "gpt")


def test_a_job_of_which_nothing_is_measured_yet_is_not_moved_by_itself(cluster: Cluster) -> None:
    cluster.call("PUT", "modes", json={"modes": {"reconfigure": "auto"}, "why": "trial"})
    cluster.lease("n1", "n2")
    cluster.start("small", "n1", seconds=None)
    store = cluster.client.app.state.pitstop.store  # type: ignore[attr-defined]

    def held(moved: str | None = None) -> str | None:
        with store.reading() as session:
            return restricted(session, stored_cluster(session, time.time()).state, moved).task("small").held

    assert held() == "none of its step times is known yet" and held(moved="small") is None
    page = cluster.client.get("/plan", headers=cluster.admin).text
    assert "no step time is known of small: each rank is taken to do 1.25e+14 FLOP/s" in page
    cluster.attempt("small", ("n1",), 1)
    cluster.measure("small")
    assert held() is None
    for number in range(7):
        cluster.start(f"new{number}", f"m{number}", seconds=None)
    assert "is known of new0, new1, new2, new3, new4 and 2 more:" in cluster.client.get("/plan", headers=cluster.admin).text


def test_a_stale_plan_is_refused(cluster: Cluster) -> None:
    cluster.lease("n1", "n2", "n3")
    cluster.start("gpt", "n1", "n2", ranks=3, layout={"flops_per_step": 3e12})
    plan = cluster.until(lambda: cluster.plan("suggested"))
    cluster.call("PUT", "jobs/gpt/weight", json={"weight": 2.0, "why": "deadline"})
    assert "stale" in cluster.call("POST", f"plans/{plan['id']}/approve", 409)["detail"]


def test_frozen_nothing_is_carried_out(cluster: Cluster) -> None:
    cluster.lease("n1", "n2", "n3")
    cluster.start("gpt", "n1", "n2", ranks=3, layout={"flops_per_step": 3e12})
    plan = cluster.until(lambda: cluster.plan("suggested"))
    cluster.call("POST", "freeze", json={"on": True, "why": "audit"})
    assert "frozen" in cluster.call("POST", f"plans/{plan['id']}/approve", 409)["detail"]


def test_in_mode_auto_nodes_are_given_up_before_they_are_taken(cluster: Cluster) -> None:
    """small is worth little: gpt grows by a node of it, which small leaves first."""
    cluster.lease("n1", "n2", "n3", "n4")
    cluster.call("PUT", "modes", json={"modes": {"reconfigure": "auto"}, "why": "trial"})
    cluster.start("gpt", "n1", "n2", ranks=3, layout={"flops_per_step": 9e12})
    cluster.start("small", "n3", "n4", layout={"flops_per_step": 1e11})
    plan = cluster.until(lambda: cluster.plan("acting"))
    assert {part["job"]: (part["nodes"], part["after"]) for part in plan["parts"]} == {
        "gpt": (["n1", "n2", "n4"], ["small"]),
        "small": (["n3"], []),
    }
    assert cluster.until(lambda: cluster.commands("n3"))[0]["args"]["nodes"] == ["n3"]
    assert cluster.commands("n1") == []
    assert cluster.obey("n3", 1) == ["restart_ranks"] and cluster.obey("n4", 0) == ["stop_ranks"]
    assert cluster.until(lambda: cluster.commands("n4"))[0]["args"]["nodes"] == ["n1", "n2", "n4"]
    for node in ("n1", "n2", "n4"):
        cluster.obey(node, 1)
    cluster.attempt("small", ("n3",), 1, step=11)
    cluster.attempt("gpt", ("n1", "n2", "n4"), 1, step=11)
    assert cluster.until(lambda: cluster.plan("verified"))["id"] == plan["id"]


def test_the_page_shows_plan_alternatives_and_what_if(cluster: Cluster) -> None:
    assert "No job runs" in cluster.client.get("/plan", headers=cluster.admin).text
    two_jobs(cluster)
    page = cluster.client.get("/plan", params={"what_if": ["node n2 lost"]}, headers=cluster.admin).text
    for said in ("If node n2 lost", "take from other", "chosen", 'data-node="n3"', "small &rarr; gpt"):
        assert said in page, said
    assert "no usable node" in cluster.client.get("/plan", params={"what_if": ["node n9 lost"]}, headers=cluster.admin).text


def test_the_schedule_of_a_job_that_adapts_its_pipeline_is_drawn(cluster: Cluster) -> None:
    cluster.lease("n1", "n2")
    sizes = {"replicas": 2, "stages": 2, "microbatches": 4, "unit_seconds": 0.1, "workers_per_node": 2}
    cluster.start("gpt", "n1", "n2", min_ranks=2, layout={"flops_per_step": 4e12, "pipeline_schedule": sizes})
    asked = {"what_if": ["node n2 lost"]}
    page = cluster.client.get("/plan", params=asked, headers=cluster.admin).text
    assert "adapt pipeline" in page and "/plan/schedule.svg?what_if=node%20n2%20lost" in page
    drawn = cluster.client.get("/plan/schedule.svg", params=asked, headers=cluster.admin)
    assert drawn.headers["content-type"] == "image/svg+xml"
    assert "F of micro-batch 7" in drawn.text
    assert cluster.client.get("/plan/schedule.svg", headers=cluster.admin).status_code == 404


def test_a_lost_worker_is_adapted_around_and_where_that_fails_the_job_is_restarted(cluster: Cluster) -> None:
    nodes = ("n1", "n2", "n3", "n4")
    cluster.lease(*nodes)
    sizes = {"replicas": 2, "stages": 2, "microbatches": 3, "unit_seconds": 0.1, "regroup_seconds": 1.0}
    cluster.start("gpt", *nodes, min_ranks=4, layout={"pipeline_schedule": sizes})
    killed = {"rank": 3, "node": "n4", "exit_code": None, "signal": 9, "error": None}
    report = {"attempt": 0, "generation": 0, "idempotency_key": "gpt-0", "failed": [killed], "last_step": 10, "unreachable": []}
    cluster.call("POST", "jobs/gpt/failures?wait=0", json=report | {"told_by": "n1", "in_place": [0, 1, 2]})
    (command,) = cluster.until(lambda: cluster.commands("n1"))
    assert (command["kind"], command["args"]["directive"], command["generation"]) == ("restart_ranks", "adapt", 1)
    assert command["args"]["nodes"] == list(nodes) and command["args"]["exclude"] == []
    cluster.after["n1"] = command["id"]
    answer = {"status": "failed", "generation": 0, "detail": "not all ranks that are left wait for a new group"}
    cluster.call("POST", f"nodes/n1/commands/{command['id']}/result", json=answer)
    (command,) = cluster.until(lambda: cluster.commands("n1"))
    assert (command["args"]["directive"], command["generation"]) == ("restart", 2)
    incident = cluster.call("GET", f"incidents/{cluster.call('GET', 'incidents')['items'][0]['id']}")
    told = [entry for entry in incident["timeline"] if entry["kind"] in ("priced", "decided", "escalated")]
    assert [entry["kind"] for entry in told] == ["priced", "decided", "escalated", "decided"]
    assert {item["kind"] for item in told[0]["data"]["alternatives"]} == {"adapt_pipeline", "restart_in_place"}
    assert "more than the next best (restart in place)" in told[1]["text"]


def test_a_job_whose_ranks_do_not_say_that_they_can_go_on_is_restarted(cluster: Cluster) -> None:
    cluster.lease("n1", "n2")
    sizes = {"replicas": 2, "stages": 1, "microbatches": 3, "unit_seconds": 0.1}
    cluster.start("gpt", "n1", "n2", layout={"pipeline_schedule": sizes})
    killed = {"rank": 1, "node": "n2", "exit_code": None, "signal": 9, "error": None}
    report = {"attempt": 0, "generation": 0, "idempotency_key": "gpt-0", "failed": [killed], "last_step": 10, "unreachable": []}
    cluster.call("POST", "jobs/gpt/failures?wait=0", json=report)
    assert cluster.until(lambda: cluster.commands("n1"))[0]["args"]["directive"] == "restart"
