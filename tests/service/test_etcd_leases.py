"""Leases in a real etcd: what one replica hears, the other one judges; without etcd nobody is judged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.etcd_leases import EtcdLeases
from service.ingest.matching import MatcherPool
from service.leases import LeaseWatch
from service.settings import SettingsError, load_settings
from service.store import Store
from tests.node.peer import wait_for
from tests.service.etcd_process import EtcdProcess, has_etcd
from tests.service.scripted_agent import ScriptedAgent
from tests.service.test_leases import TTL, Time, kinds
from tests.service.test_node_loss import Clock, begin, lost_peer, until

pytestmark = [pytest.mark.acceptance]
NODES = [f"n{number}" for number in range(150)]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    if not has_etcd():
        assert not os.environ.get("CI"), "etcd is missing: install etcd-server"
        pytest.skip("etcd is not installed")
    process = EtcdProcess(tmp_path / "etcd")
    process.start()
    yield process
    process.kill()


def run(watch: LeaseWatch, time: Time, seconds: float, hearing: EtcdLeases, *names: str) -> None:
    for _ in range(int(seconds * 2)):
        time.now += 0.5
        for name in names:
            hearing.heard(name)
        hearing.write()
        watch.look()


def test_what_one_replica_heard_the_other_judges_and_without_etcd_nobody_is(etcd: EtcdProcess, store: Store) -> None:
    time = Time()
    one, other = EtcdLeases(etcd.url, TTL), EtcdLeases(etcd.url, TTL)
    watch = LeaseWatch(store, time, other, lambda: True)
    run(watch, time, 5, one, *NODES)
    run(watch, time, 3.5, one, *NODES[1:])
    assert kinds(store) == [("node.silent", "n0")]
    etcd.kill()
    run(watch, time, 10, one, *NODES)
    assert "does not answer" in str(watch.report()["unknown"])
    etcd.start()
    run(watch, time, 2, one, *NODES)
    assert kinds(store) == [("node.silent", "n0"), ("node.heard", "n0")], "its absence is nobody's silence"
    assert watch.report() == {"silent": [], "suspects_itself": None, "unknown": None}


def test_a_renewal_of_a_lease_reaches_etcd(etcd: EtcdProcess, tmp_path: Path, pool: MatcherPool) -> None:
    settings = load_settings(data_dir=tmp_path / "data", etcd=etcd.url)
    app = create_app(settings, shared_pool=pool)
    with TestClient(app, base_url="http://localhost", client=("127.0.0.1", 50000)) as client:
        agent = ScriptedAgent(client, node="n7")
        agent.lease()
        seen = EtcdLeases(etcd.url, TTL)
        for _ in range(200):
            agent.lease()
            if [lease.node for lease in seen.leases(0.0)] == ["n7"]:
                return
    raise AssertionError("the lease did not come")


def test_a_node_that_etcd_knows_nothing_of_any_more_is_not_lost_whatever_the_database_says(
    etcd: EtcdProcess, tmp_path: Path, pool: MatcherPool
) -> None:
    settings = load_settings(data_dir=tmp_path / "data", etcd=etcd.url)
    app = create_app(settings, clock=Clock(), shared_pool=pool)
    with TestClient(app, base_url="http://localhost", client=("127.0.0.1", 50000)) as client:
        one, _ = begin(client)
        etcd.kill()
        wait_for(lambda: client.get("/readyz").json()["leases"]["unknown"])
        one.fail(**lost_peer())
        assert until(client, one)["reason"] != "node_failure"


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="PITSTOP_ETCD"):
        load_settings(etcd="etcd-0")
