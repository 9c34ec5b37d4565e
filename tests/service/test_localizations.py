"""The service directs localisations: over HTTP, with agents that answer as a simulated cluster would."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from recovery.localization.probes import Pool, Probe
from recovery.localization.simulation import Cluster, FaultKind
from rules.diagnosis import Diagnosis, Evidence
from rules.signal import Role
from rules.taxonomy import load_taxonomy
from service.incidents import FailureReport
from service.localization_requests import localise_recovery
from service.localizations import Localizations
from service.node_returns import NodeReturns
from service.recoveries import Recoveries
from service.store import Store
from service.store.fleet import NodeReturn
from service.store.jobs import Attempt, Job, Node
from service.store.localizations import LocalizationRow, ProbeRow
from service.store.recoveries import CommandRow, RecoveryRow
from tests.service.probing_agents import ProbingAgents, until_done
from tests.service.scripted_agent import ScriptedAgent

NODES = tuple(f"n{index}" for index in range(6))


def begun(client: Any, **body: Any) -> str:
    answer = client.post("/api/v1/localizations", json=body)
    assert answer.status_code == 202, answer.json()
    return str(answer.json()["id"])


@pytest.fixture
def operator(client: Any, admin: dict[str, str]) -> Any:
    client.headers.update(admin)
    return client


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is silent: an answer that a busy machine delays is not taken for one that does not come."""
    monkeypatch.setattr("service.localizations.ANSWER_SECONDS", 60.0)


@pytest.mark.usefixtures("patience")
def test_a_faulty_node_is_found_among_idle_nodes(operator: Any) -> None:
    agents = ProbingAgents(operator, Cluster(Pool(NODES), {"n3": FaultKind.HARD}))
    agents.lease()
    found = until_done(agents, begun(operator, nodes=list(NODES), seconds=600))
    assert found["verdict"]["isolate"] == ["n3"]
    assert found["verdict"]["nodes"]["n0"]["verdict"] == "good"
    assert "1 faulty (n3)" in found["summary"]
    failed = [probe for probe in found["probes"] if probe["outcome"] == "timed_out"]
    assert failed and all("n3" in probe["members"] for probe in failed)


@pytest.mark.usefixtures("patience")
def test_the_matrix_is_on_the_incidents_page_and_in_its_document(operator: Any) -> None:
    agents = ProbingAgents(operator, Cluster(Pool(NODES), {"n3": FaultKind.HARD}))
    agents.lease()
    number = begun(operator, nodes=list(NODES), seconds=600)
    until_done(agents, number)
    job = ScriptedAgent(operator)
    job.register()
    incident = int(job.fail()["incident"])
    assert operator.get(f"/api/v1/incidents/{incident}").json()["localization"] is None
    with operator.app.state.pitstop.store.writing() as session:
        session.get_one(LocalizationRow, int(number)).incident_id = incident
    document = operator.get(f"/api/v1/incidents/{incident}").json()["localization"]
    assert document["verdict"]["isolate"] == ["n3"]
    assert {"turn", "round", "members", "outcome", "seconds", "error"} <= set(document["probes"][0])
    page = operator.get(f"/incidents/{incident}").text
    assert "1 faulty (n3)" in page
    failed = next(probe for probe in document["probes"] if probe["outcome"] == "timed_out")
    assert " - ".join(failed["members"]) in page
    assert "2 suspect with a good one" in page


@pytest.mark.usefixtures("patience")
def test_each_world_gets_a_store_of_its_own_on_a_node_that_is_in_it(operator: Any) -> None:
    agents = ProbingAgents(operator, Cluster(Pool(NODES)))
    agents.lease()
    until_done(agents, begun(operator, nodes=list(NODES), seconds=600))
    stores: dict[tuple[str, int], set[str]] = {}
    for row in agents.asked:
        if row["args"]["op"] == "world":
            stores.setdefault((row["args"]["host"], row["args"]["port"]), set()).add(row["args"]["id"])
            if row["args"]["index"] == 0:
                assert row["args"]["host"] == f"10.0.0.{NODES.index(row['node'])}"
    assert all(len(ids) == 1 for ids in stores.values())


def test_an_agent_that_does_not_answer_is_undecided_and_not_isolated(operator: Any) -> None:
    agents = ProbingAgents(operator, Cluster(Pool(NODES)), silent=frozenset({"n5"}))
    agents.lease()
    found = until_done(agents, begun(operator, nodes=list(NODES), seconds=20))
    assert found["verdict"]["nodes"]["n5"]["verdict"] == "undecided"
    assert found["verdict"]["isolate"] == []


def test_nodes_whose_agents_offer_no_probes_cannot_be_localised(operator: Any) -> None:
    answer = operator.post("/api/v1/localizations", json={"nodes": ["n1", "n2"]})
    assert answer.status_code == 409
    assert "offers probes" in answer.json()["detail"]


def test_a_frozen_pitstop_begins_no_localisation(operator: Any) -> None:
    operator.post("/api/v1/freeze", json={"on": True, "why": "tonight"})
    assert operator.post("/api/v1/localizations", json={"nodes": ["n1"]}).status_code == 409


def test_running_jobs_are_not_probed_beside(operator: Any) -> None:
    job = ScriptedAgent(operator, node="n1")
    job.register()
    job.start()
    job.heartbeat(3)
    answer = operator.post("/api/v1/localizations", json={"nodes": ["n1", "n2"]})
    assert answer.status_code == 409
    assert "name the job" in answer.json()["detail"]


class FailedJob:
    """A job on n0..n5 whose own processes say that a GPU fell off the bus, which names no node for sure; run without HTTP."""

    def __init__(self, store: Store, cluster: Cluster, modes: dict[str, str]) -> None:
        self.store, self.cluster, self.now = store, cluster, 1000.0
        self.rng = random.Random(3)
        self.localizer = Localizations(store, lambda: self.now)
        returns = NodeReturns(store, lambda: self.now)
        localise = partial(localise_recovery, self.localizer)
        self.recoveries = Recoveries(store, lambda: self.now, returns, lambda _: LOST_GPU, localise)
        self.localizer.tell = self.recoveries.tell
        with store.writing() as session:
            job = {
                "ranks": 6,
                "min_ranks": 1,
                "nodes": list(NODES),
                "command": [],
                "generation": 0,
                "weight": 1.0,
                "modes": modes,
            }
            session.add(Job(name="gpt", state="running", created_at=1.0, updated_at=1.0, **job))
            for node in NODES:
                known = {"state": "ready", "versions": {}, "lease_until": 9e9, "seen_at": 1.0}
                session.add(Node(id=node, probes="gloo", probes_at=1000.0, **known))
            session.flush()
            ranks = [{"rank": rank, "node": node} for rank, node in enumerate(NODES)]
            session.add(Attempt(job="gpt", number=0, generation=0, cause="start", ranks=ranks, started_at=1.0))
        with store.writing() as session:
            failed = ({"rank": 1, "node": "n1", "exit_code": 1},)
            self.recovery = self.recoveries.report(session, FailureReport("gpt", 0, 0, "k0", failed)).id

    def orders(self) -> list[CommandRow]:
        with self.store.reading() as session:
            return list(session.scalars(select(CommandRow).where(CommandRow.status.is_(None)).order_by(CommandRow.id)))

    def answer(self, orders: list[CommandRow]) -> None:
        """What the agents say; probes show what the cluster is like."""
        seen: dict[int | None, dict[str, object]] = {}
        with self.store.reading() as session:
            members = {probe.id: tuple(probe.members) for probe in session.scalars(select(ProbeRow))}
        with ThreadPoolExecutor(len(orders)) as threads:
            for order in orders:
                probe = None
                if order.probe_id is not None:
                    result = self.cluster.run(Probe(0, 1, members[order.probe_id]), self.rng)
                    shown = {"outcome": result.outcome.value, "seconds": result.seconds, "error": "", "took": 0.2}
                    probe = {**seen.setdefault(order.probe_id, shown), "host": order.node, "port": 4000 + order.id}
                threads.submit(self.localizer.deliver, order.id, "done", 0, "", probe)
            while self.orders() and {order.id for order in self.orders()} & {order.id for order in orders}:
                self.localizer.tick()

    def localise(self) -> None:
        """Until no probe is asked for any more."""
        for _ in range(200):
            self.now += 0.3
            self.localizer.tick()
            probes = [order for order in self.orders() if order.localization_id is not None]
            if not probes:
                return
            self.answer(probes)
        raise AssertionError("probes without end")

    def row(self) -> RecoveryRow:
        with self.store.reading() as session:
            return session.get_one(RecoveryRow, self.recovery)


LOST_GPU = Diagnosis.of(
    load_taxonomy()["gpu_fallen_off_bus"], "it broke", rule="PS-1", evidence=(Evidence(Role.ROOT, "lost", rule="PS-1"),)
)


def test_the_ranks_are_stopped_first_and_only_the_confirmed_node_is_isolated(store: Store) -> None:
    job = FailedJob(store, Cluster(Pool(NODES), {"n3": FaultKind.HARD}), {"isolate": "auto", "shrink": "auto"})
    job.recoveries.advance(job.recovery)
    stops = job.orders()
    assert {(order.kind, order.node, order.args["hold"]) for order in stops} == {("stop_ranks", node, True) for node in NODES}
    job.localizer.tick()
    assert job.orders() and all(order.kind == "stop_ranks" for order in job.orders()), "no probe before the ranks are gone"
    job.answer(stops)
    job.localise()
    row = job.row()
    decision = row.state["decision"]
    assert (decision["action"], decision["exclude"]) == ("isolate", ["n3"])
    assert "localisation confirmed n3" in " ".join(decision["why"])
    assert [entry["stage"] for entry in row.state["trail"]][-3:] == ["localised", "decided", "planned"]
    with store.reading() as session:
        assert [item.node for item in session.scalars(select(NodeReturn))] == ["n3"]
    kinds = {(order.kind, order.node) for order in job.orders()}
    assert kinds == {("stop_ranks", "n3"), *(("restart_ranks", node) for node in NODES if node != "n3")}


def test_by_default_modes_the_node_is_named_and_the_job_goes_on_where_it_was(store: Store) -> None:
    job = FailedJob(store, Cluster(Pool(NODES), {"n3": FaultKind.HARD}), {})
    job.recoveries.advance(job.recovery)
    job.answer(job.orders())
    job.localise()
    decision = job.row().state["decision"]
    assert (decision["action"], decision["exclude"]) == ("restart", [])
    assert "localisation confirmed n3" in " ".join(decision["why"])
    with store.reading() as session:
        assert not session.scalars(select(NodeReturn)).all()


def test_a_job_that_went_on_by_itself_meanwhile_is_not_stopped_to_be_probed(store: Store) -> None:
    job = FailedJob(store, Cluster(Pool(NODES), {"n3": FaultKind.HARD}), {"isolate": "auto"})
    with store.writing() as session:
        session.get_one(Job, "gpt").generation = 1
    job.recoveries.advance(job.recovery)
    assert not [order for order in job.orders() if order.localization_id is not None]
    assert "goes on under generation 1" in str(job.row().state["trail"])


def test_where_nothing_is_found_what_was_decided_is_carried_out(store: Store) -> None:
    job = FailedJob(store, Cluster(Pool(NODES)), {"isolate": "auto"})
    job.recoveries.advance(job.recovery)
    job.answer(job.orders())
    job.localise()
    assert job.row().state["decision"]["action"] == "restart"
    assert {order.kind for order in job.orders()} == {"restart_ranks"}


def test_the_ladder_goes_on_after_the_limit_whatever_the_agents_do(store: Store) -> None:
    job = FailedJob(store, Cluster(Pool(NODES)), {"isolate": "auto"})
    job.recoveries.advance(job.recovery)
    for _ in range(70):
        job.now += 1.0
        job.localizer.tick()
        job.recoveries.advance(job.recovery)
    row = job.row()
    assert row.state["decision"]["action"] == "restart"
    assert "localised" in [entry["stage"] for entry in row.state["trail"]]
    with store.reading() as session:
        (found,) = session.scalars(select(LocalizationRow)).all()
    assert found.state == "done"


def test_a_service_that_died_in_the_middle_goes_on_from_what_is_stored(store: Store) -> None:
    job = FailedJob(store, Cluster(Pool(NODES), {"n3": FaultKind.HARD}), {"isolate": "auto", "shrink": "auto"})
    job.recoveries.advance(job.recovery)
    job.answer(job.orders())
    for _ in range(3):
        job.now += 0.3
        job.localizer.tick()
        job.answer(job.orders())
    job.localizer = Localizations(store, lambda: job.now, tell=job.recoveries.tell)
    job.localise()
    assert job.row().state["decision"]["exclude"] == ["n3"]
