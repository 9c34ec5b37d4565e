"""Renewals are held in memory and written together: nothing that is decided on them, or new in them, waits for that."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from node.link import BEAT_SECONDS
from service.app import create_app
from service.database_leases import COMPARE_SECONDS, WRITE_SECONDS, DatabaseLeases, Renewal, gathered, newest
from service.ingest.matching import MatcherPool
from service.leases import LOOK_SECONDS, LeaseWatch
from service.migration import migrate
from service.node_reports import NodeReport, ReportedGpu, stored_reports
from service.settings import Settings
from service.state import Service
from service.store import Store
from service.store.accounts import NodeHeat
from service.store.events import events_after
from service.store.jobs import Node
from tests.service.postgres import postgres
from tests.service.test_heartbeats import check_that_the_newest_stays
from tests.service.test_leases import TTL, Time, kinds, renew
from tests.service.transactions import commits

HOUR = 3600.0
LEASE: dict[str, Any] = {"boot_id": "b", "agent_id": "a", "clock": 1.0}


def report(node: str, **fields: Any) -> NodeReport:
    return NodeReport(**({"node": node, "agent_id": "a", "boot_id": "b", "versions": {}} | fields))


def beat(leases: DatabaseLeases, said: NodeReport, at: float, **fields: Any) -> None:
    """What the route does with a renewal."""
    renewal = Renewal(said.node, at, 0.0, **fields)
    if not leases.renewed(said, renewal):
        leases.register([(said, renewal)])


def row(store: Store, node: str) -> Node:
    with store.reading() as session:
        found = session.get(Node, node)
    assert found is not None
    return found


def test_a_thousand_renewals_of_one_second_are_one_transaction(store: Store) -> None:
    time = Time()
    names = [f"n{number}" for number in range(50)]
    with store.writing() as session:
        session.add_all(
            Node(id=name, state="ready", versions={}, seen_at=1.0, boot_id="b", agent_id="a", lease_until=time.now + 1)
            for name in names
        )
    leases = DatabaseLeases(store, time, TTL)
    with commits(store) as seen:
        for _ in range(20):
            time.now += 0.05
            for name in names:
                beat(leases, report(name), time.now)
        assert not seen
        leases.write()
        assert len(seen) == 1
        leases.write()
        assert len(seen) == 1, "what is written is not written again"
    with store.reading() as session:
        assert set(session.execute(select(Node.seen_at, Node.lease_until))) == {(time.now, time.now + TTL)}


def test_a_renewal_is_answered_while_another_transaction_writes_and_what_it_adds_is_not(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    service: Service = client.app.state.pitstop  # type: ignore[attr-defined]
    monkeypatch.setattr(service.leases, "_ttl_seconds", HOUR)
    assert client.post("/api/v1/nodes/n1/lease", json=LEASE).status_code == 200
    with service.store.writing() as session:
        session.connection()
        assert client.post("/api/v1/nodes/n1/lease", json=LEASE | {"clock": 2.0}).status_code == 200
    news = LEASE | {"boot_id": "b2", "aliases": ["node-1"], "gpus": [{"serial": "S1", "index": 0}], "versions": {"driver": "550"}}
    client.post("/api/v1/nodes/n1/lease", json=news).raise_for_status()
    with service.store.reading() as session:
        assert stored_reports(session, ["n1"])["n1"] == NodeReport(
            "n1", "a", "b2", {"driver": "550"}, frozenset({"node-1"}), {"S1": ReportedGpu(None, "S1", None, 0)}
        )
        told = [item.kind for item in events_after(session, 0) if item.subject == "n1"]
    assert told == ["node.joined", "node.rebooted"]


def test_what_is_held_is_written_when_the_service_stops(
    settings: Settings, pool: MatcherPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.database_leases.WRITE_SECONDS", HOUR)
    app = create_app(settings.model_copy(update={"lease_seconds": 10 * HOUR}), shared_pool=pool)
    with TestClient(app, base_url="http://localhost", client=("127.0.0.1", 50000)) as client:
        for _ in range(3):
            heard = client.post("/api/v1/nodes/n1/lease", json=LEASE).json()["time"]
    store = Store(settings.database_url)
    assert row(store, "n1").seen_at == heard
    store.close()


def test_the_judge_of_this_replica_sees_renewals_before_they_are_written(store: Store) -> None:
    time = Time()
    leases = DatabaseLeases(store, time, TTL)
    watch = LeaseWatch(store, time, leases, lambda: True)
    for turn in range(40):
        time.now += 0.25
        for name in ("n0", "n1")[turn >= 20 :]:
            beat(leases, report(name), time.now)
        watch.look()
    assert kinds(store)[-1:] == [("node.silent", "n0")]


def test_the_judge_of_another_replica_sees_them_soon_enough_and_a_silent_node_within_three_seconds(store: Store) -> None:
    time = Time()
    names = [f"n{number}" for number in range(10)]
    heard, judging = DatabaseLeases(store, time, TTL), DatabaseLeases(store, time, TTL)
    watch = LeaseWatch(store, time, judging, lambda: True)
    last = fell = 0.0
    for turn in range(200):
        time.now += 0.25
        # Just missed by the write, each renewal is a second old when the next one takes it.
        if turn % 4 == 0:
            heard.write()
            for name in names:
                if name != "n0" or turn < 120:
                    beat(heard, report(name), time.now)
                    last = time.now if name == "n0" else last
        watch.look()
        if not fell and watch.report()["silent"]:
            fell = time.now
    assert [subject for kind, subject in kinds(store) if kind == "node.silent"] == ["n0"]
    assert fell - last <= 3.0


def test_an_agent_that_went_to_another_replica_is_not_set_back_by_what_this_one_still_holds(store: Store) -> None:
    time = Time()
    before, after = DatabaseLeases(store, time, TTL), DatabaseLeases(store, time, TTL)
    beat(before, report("n0"), time.now)
    beat(before, report("n0"), time.now + 0.5)
    beat(after, report("n0"), time.now + 1)
    time.now += 1
    after.write()
    before.write()
    assert row(store, "n0").seen_at == time.now


def test_a_clock_that_is_set_back_does_not_keep_a_lease_alive(store: Store) -> None:
    time = Time()
    leases = DatabaseLeases(store, time, TTL)
    beat(leases, report("n0"), time.now)
    time.now -= HOUR
    beat(leases, report("n0"), time.now)
    assert [lease.renewed_at for lease in leases.leases(time.now)] == [time.now]
    leases.write()
    assert row(store, "n0").lease_until == time.now + TTL


def test_a_service_that_starts_again_takes_known_nodes_without_a_transaction(store: Store) -> None:
    time = Time()
    beat(DatabaseLeases(store, time, TTL), report("n0", aliases=frozenset({"a"}), probes="gloo"), time.now)
    again = DatabaseLeases(store, time, TTL)
    with commits(store) as seen:
        beat(again, report("n0", aliases=frozenset({"a"})), time.now + 2)
    assert not seen
    assert [lease.renewed_at for lease in again.leases(time.now + 2)] == [time.now + 2]


@pytest.mark.parametrize("replica", ["the same", "one that starts again"])
def test_that_a_node_is_heard_whose_lease_had_run_out_is_written_at_once(store: Store, replica: str) -> None:
    time = Time()
    leases = DatabaseLeases(store, time, TTL)
    beat(leases, report("n0"), time.now)
    time.now += TTL + 0.1
    beat(leases if replica == "the same" else DatabaseLeases(store, time, TTL), report("n0"), time.now)
    assert row(store, "n0").lease_until == time.now + TTL


def test_agents_of_one_node_that_say_different_things_cost_no_transactions_of_their_own(store: Store) -> None:
    time = Time()
    leases = DatabaseLeases(store, time, TTL)
    agents = [report("n0", agent_id=agent, probes=probes) for agent, probes in (("node", "gloo"), ("job", None))]
    for said in agents:
        beat(leases, said, time.now)
    turns = int(2 * COMPARE_SECONDS)
    with commits(store) as seen:
        for _ in range(turns):
            time.now += 1
            for said in agents:
                beat(leases, said, time.now, probes_at=time.now if said.probes else None)
            leases.write()
    assert len(seen) == turns
    assert (row(store, "n0").probes, row(store, "n0").probes_at) == ("gloo", time.now)


def test_agents_that_arrive_together_are_stored_together_those_of_one_node_too(store: Store) -> None:
    time = Time()
    leases = DatabaseLeases(store, time, TTL)
    agents = [("n0", "node", "gloo"), ("n0", "job", None), ("n1", "node", None)]
    with commits(store) as seen:
        leases.register(
            [
                (
                    report(node, agent_id=agent, probes=probes, aliases=frozenset({f"{node}.{agent}"})),
                    Renewal(node, time.now + turn, 0.0, time.now if probes else None, {1: 70.0 - turn}),
                )
                for turn, (node, agent, probes) in enumerate(agents)
            ]
        )
    assert len(seen) == 1
    found = row(store, "n0")
    assert (found.seen_at, found.probes, found.probes_at) == (time.now + 1, "gloo", time.now)
    with store.reading() as session:
        assert stored_reports(session, ["n0", "n1", "n2"]).keys() == {"n0", "n1"}
        assert stored_reports(session, ["n0"])["n0"].aliases == {"n0.job"}
        assert {(heat.node, heat.highest_celsius) for heat in session.scalars(select(NodeHeat))} == {("n0", 70.0), ("n1", 68.0)}
    assert {lease.node: lease.renewed_at for lease in leases.leases(time.now)} == {"n0": time.now + 1, "n1": time.now + 2}


def test_what_another_replica_stored_of_a_node_is_corrected_by_the_reports_that_still_come_here(store: Store) -> None:
    time = Time()
    here, there = DatabaseLeases(store, time, TTL), DatabaseLeases(store, time, TTL)
    moved = {"S1": ReportedGpu(serial="S1", index=0)}
    beat(here, report("n0", gpus=moved), time.now)
    beat(there, report("n1", gpus=moved), time.now)
    beat(here, report("n0", gpus=moved), time.now + COMPARE_SECONDS)
    with store.reading() as session:
        stored = stored_reports(session, ["n0"])["n0"]
    assert stored.gpus == moved


def test_what_could_not_be_written_is_held_until_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    leases = DatabaseLeases(store, time, TTL)
    beat(leases, report("n0"), time.now)
    beat(leases, report("n0"), time.now + 1)
    with monkeypatch.context() as broken, pytest.raises(OperationalError):

        def full(*_: object) -> None:
            raise OperationalError("UPDATE", {}, OSError("disk full"))

        broken.setattr("service.database_leases.write_renewals", full)
        leases.write()
    leases.write()
    assert row(store, "n0").seen_at == time.now + 1


def check_heat_and_times(store: Store) -> None:
    time = Time(1000 * HOUR)
    leases = DatabaseLeases(store, time, TTL)
    for celsius in (60.0, 83.0, 70.0, 61.0):
        time.now += 1
        beat(leases, report("n0"), time.now, heat={1000: celsius}, probes_at=time.now)
    leases.write()
    beat(leases, report("n0"), time.now + 1, heat={1000: 65.0, 1001: 50.0})
    leases.write()
    found = row(store, "n0")
    assert (found.seen_at, found.lease_until, found.probes_at) == (time.now + 1, time.now + 1 + TTL, time.now)
    with store.reading() as session:
        heat = {hour.hour: hour.highest_celsius for hour in session.scalars(select(NodeHeat))}
    assert heat == {1000: 83.0, 1001: 50.0}


def test_the_hottest_of_an_hour_stays(store: Store) -> None:
    check_heat_and_times(store)


@pytest.mark.acceptance
def test_postgresql_takes_the_same_statements() -> None:
    with postgres() as url:
        store = Store(url)
        migrate(store)
        check_heat_and_times(store)
        check_that_the_newest_stays(store)
        time = Time(1000 * HOUR)
        renew(store, time, "n1", "n2")
        leases = DatabaseLeases(store, time, TTL)
        for name in ("n2", "n1"):
            beat(leases, report(name), time.now + 1)
            beat(leases, report(name), time.now + 2)
        leases.write()
        assert {row(store, name).seen_at for name in ("n1", "n2")} == {time.now + 2}
        store.close()


TIMES = st.dictionaries(st.sampled_from("abc"), st.floats(0, 100))


@given(TIMES, TIMES)
def test_a_node_is_heard_last_when_memory_or_store_says_last(stored: dict[str, float], held: dict[str, float]) -> None:
    together = newest(stored, held, now=100.0)
    assert together.keys() == stored.keys() | held.keys()
    assert all(at == max(stored.get(node, -1.0), held.get(node, -1.0)) for node, at in together.items())
    assert all(newest(stored, held, now=-1.0)[node] == at for node, at in held.items()), "stored times are all from the future"


def test_a_renewal_takes_over_what_is_not_written_of_the_one_before() -> None:
    before = Renewal("n0", 1.0, 0.1, probes_at=1.0, heat={7: 80.0})
    after = Renewal("n0", 2.0, 0.2, heat={7: 70.0, 8: 75.0})
    assert gathered(before, after) == after._replace(probes_at=1.0, heat={7: 80.0, 8: 75.0})
    assert gathered(None, after) == after


def test_a_renewal_and_its_write_fit_into_the_time_to_live() -> None:
    assert BEAT_SECONDS + WRITE_SECONDS + LOOK_SECONDS < TTL == Settings().lease_seconds
