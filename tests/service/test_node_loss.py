"""A node whose agent falls silent: a signal by itself, a lost node with a witness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from detectors.lease import Judge, Lease, LeaseReview, review_leases
from service.app import create_app
from service.ingest.matching import MatcherPool
from service.losses import awaits_leases
from service.settings import Settings
from service.state import Service
from service.store.incidents import Failure
from tests.node.peer import wait_for
from tests.service.scripted_agent import ScriptedAgent

# Less than half of what the judge of leases takes for a pause of its own.
STEP_SECONDS = 0.4


@dataclass
class Clock:
    """Stands still but for `look`: on a machine however slow, no lease runs out before its time."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def client(settings: Settings, pool: MatcherPool, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr("service.leases.LOOK_SECONDS", 0.02)
    application = create_app(settings, clock=Clock(), shared_pool=pool)
    with TestClient(application, base_url="http://localhost", client=("127.0.0.1", 50000)) as client:
        yield client


def look(client: TestClient, seconds: float = STEP_SECONDS) -> float:
    """So much time passes, and the leases are judged; the time then."""
    service: Service = client.app.state.pitstop  # type: ignore[attr-defined]
    clock, before = service.clock, service.recoveries.reviewed()
    assert isinstance(clock, Clock)
    clock.now += seconds
    wait_for(lambda: service.recoveries.reviewed() is not before)
    return clock.now


class TwoNodes(ScriptedAgent):
    """Ranks 0 and 1 on n1, 2 and 3 on n2, told of by the agent of n1."""

    def start(self, cause: str = "start") -> None:
        self.running = True
        ranks = [{"rank": rank, "local_rank": rank % 2, "node": f"n{rank // 2 + 1}", "pid": 100 + rank} for rank in range(4)]
        self.post(
            f"jobs/{self.job}/attempts",
            {"attempt": self.generation + 1, "generation": self.generation, "cause": cause, "ranks": ranks},
        )


def lost_peer(**fields: Any) -> dict[str, Any]:
    return {
        "attempt": 1,
        "failed": [{"rank": 0, "node": "n1", "exit_code": 1, "signal": None, "error": "RuntimeError: Connection reset by peer"}],
        "unreachable": [{"node": "n2", "since": 1_000_000.0, "why": "its agent closed the connection"}],
        **fields,
    }


def begin(client: TestClient) -> tuple[TwoNodes, ScriptedAgent]:
    one, two = TwoNodes(client, ranks=4), ScriptedAgent(client, node="n2")
    one.register(nodes=["n1", "n2"], ranks=4, min_ranks=2)
    two.lease()
    one.start()
    one.heartbeat(5)
    look(client)
    return one, two


def until(client: TestClient, *agents: ScriptedAgent, passing: float = STEP_SECONDS) -> dict[str, Any]:
    """The incident, once it was decided upon; the agents renew their leases meanwhile, and so much time passes at each look."""

    def decided() -> dict[str, Any] | None:
        look(client, passing)
        for agent in agents:
            agent.lease()
        listed = client.get("/api/v1/incidents?job=gpt").json()["items"]
        incident: dict[str, Any] = client.get(f"/api/v1/incidents/{listed[0]['id']}").json() if listed else {}
        return incident if any(recovery["directive"] for recovery in incident.get("recoveries", ())) else None

    found: dict[str, Any] = wait_for(decided, what="a decision")
    return found


def test_a_node_that_is_silent_and_out_of_reach_is_lost_and_the_job_goes_on_without_it(client: TestClient) -> None:
    one, _ = begin(client)
    began = look(client, 0.0)
    one.fail(**lost_peer())
    incident = until(client, one)
    assert (incident["reason"], incident["severity"], incident["node"]) == ("node_failure", "SEV1", "n2")
    directive = incident["recoveries"][-1]["directive"]
    assert directive["directive"] == "shrink" and directive["nodes"]["exclude"] == ["n2"] and directive["nodes"]["use"] == ["n1"]
    assert look(client, 0.0) - began >= 2, "not before its lease ran out"
    (restart,) = [command for command in one.poll() if command["kind"] == "restart_ranks"]
    assert restart["args"]["nodes"] == ["n1"]


def test_a_node_that_only_its_peers_cannot_reach_is_not_lost(client: TestClient) -> None:
    one, two = begin(client)
    one.fail(**lost_peer())
    incident = until(client, one, two)
    assert incident["reason"] != "node_failure" and incident["severity"] != "SEV1"
    assert incident["recoveries"][-1]["directive"]["nodes"]["exclude"] == []


@pytest.mark.parametrize("passing", [0.1, STEP_SECONDS], ids=["just after the service's start", "later"])
def test_of_nodes_that_say_of_one_another_that_they_are_out_of_reach_the_leaders_goes_on_and_the_other_is_told(
    client: TestClient, passing: float
) -> None:
    one, two = begin(client)
    one.fail(**lost_peer(told_by="n1"))
    hang = {"rank": None, "node": "n2", "exit_code": None, "signal": None, "error": "pitstop monitor: hang: rank 2 is in sync"}
    gone = {"node": "n1", "since": 1_000_000.0, "why": "nothing was heard for 2 s"}
    two.fail(attempt=1, failed=[hang], unreachable=[gone], told_by="n2", idempotency_key="gpt:0:hang:told by n2")
    incident = until(client, one, two, passing=passing)
    assert (incident["reason"], incident["severity"]) == ("rendezvous_store_unreachable", "SEV2")
    line = next(item["text"] for item in incident["diagnosis"]["evidence"] if item["role"] == "root")
    assert line.startswith(
        "n1 and n2 do not reach one another, though both renew their leases (n1: its agent closed the connection; "
    )
    directive = incident["recoveries"][-1]["directive"]
    assert directive["directive"] == "shrink" and directive["nodes"] == {"exclude": ["n2"], "use": ["n1"]}
    (stop,) = [command for command in two.poll() if command["kind"] == "stop_ranks"]
    assert stop["args"]["going_on"] == ["n1"]


def test_a_silent_lease_alone_is_no_loss(client: TestClient) -> None:
    one, _ = begin(client)

    def silent() -> list[str]:
        look(client)
        one.lease()
        found: list[str] = client.get("/readyz").json().get("leases", {}).get("silent", [])
        return found

    assert wait_for(silent) == ["n2"]
    assert client.get("/api/v1/incidents").json()["items"] == []
    assert one.poll() == []


def test_a_failure_that_spread_from_a_node_within_reach_is_no_witness_against_it(client: TestClient) -> None:
    one, _ = begin(client)
    one.fail(**lost_peer(unreachable=[]))
    incident = until(client, one)
    assert incident["reason"] != "node_failure" and incident["recoveries"][-1]["directive"]["nodes"]["exclude"] == []


def test_a_node_that_turns_out_lost_after_the_decision_is_the_cause_after_all(client: TestClient) -> None:
    one, two = begin(client)
    one.fail(**lost_peer())
    # A renewal that was on its way when the node died.
    look(client)
    two.lease()
    assert until(client, one, passing=0.0)["reason"] != "node_failure"

    def restarted_without_it() -> bool:
        look(client)
        one.lease()
        return any(command["kind"] == "restart_ranks" and command["args"]["nodes"] == ["n1"] for command in one.poll())

    wait_for(restarted_without_it)
    (listed,) = client.get("/api/v1/incidents?job=gpt").json()["items"]
    assert (listed["reason"], listed["severity"], listed["node"]) == ("node_failure", "SEV1", "n2")


LEASE = Lease("n2", 99.0, 2.5)


@pytest.mark.parametrize(
    ("review", "now", "is_settled"),
    [
        (LeaseReview(), 100.1, False),
        (review_leases([], Judge(0.0, 99.9)), 100.1, False),
        (LeaseReview(), 106.0, True),
        (review_leases([LEASE], Judge(0.0, 100.1)), 100.2, False),
        (review_leases([LEASE._replace(renewed_at=100.05)], Judge(0.0, 100.1)), 100.2, True),
        (review_leases([LEASE], Judge(0.0, 102.0)), 102.1, True),
    ],
    ids=["no look yet", "a look from before", "nobody looks", "not run out", "renewed since", "silent"],
)
def test_the_cause_is_looked_for_once_a_look_from_after_the_failure_has_settled_the_lease(
    review: LeaseReview, now: float, is_settled: bool
) -> None:
    engine = create_engine("sqlite://")
    Failure.metadata.create_all(engine, [Failure.metadata.tables["failures"]])
    told = Failure(job="gpt", attempt=0, generation=0, report={"unreachable": [{"node": "n2"}]}, reported_at=100.0)
    told.incident_id, told.idempotency_key = 1, "k"
    with Session(engine) as session:
        session.add(told)
        assert awaits_leases(session, "gpt", 0, review, True, now) is not is_settled
