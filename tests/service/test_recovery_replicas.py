"""Two replicas on one PostgreSQL: every step of a recovery is taken once, and nobody waits for who waits for him."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import select, text

from service.incidents import FailureReport
from service.migration import migrate
from service.node_returns import NodeReturns
from service.reconfigurations import Reconfigurations
from service.recoveries import Recoveries
from service.store import Store
from service.store.database import hold_lock
from service.store.incidents import TimelineEntry
from service.store.jobs import Attempt, Job, Node
from service.store.plans import PlanRow
from service.store.recoveries import CommandRow, RecoveryRow
from tests.node.peer import wait_for
from tests.service.postgres import postgres
from tests.service.test_recoveries import diagnosis

JOBS = 12


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres() as url:
        store = Store(url)
        migrate(store)
        with store.writing() as session:
            now = time.time()
            session.add(Node(id="n1", state="ready", versions={}, lease_until=now + 3600, seen_at=now))
        store.close()
        yield url


@pytest.fixture
def stores(database: str) -> Iterator[list[Store]]:
    stores = [Store(database), Store(database)]
    yield stores
    for store in stores:
        store.close()


def run_jobs(store: Store, names: list[str]) -> None:
    now = time.time()
    with store.writing() as session:
        for name in names:
            job = {"ranks": 1, "nodes": ["n1"], "command": [], "generation": 0, "weight": 1.0, "modes": {}, "state": "running"}
            session.add(Job(name=name, created_at=now, updated_at=now, local=False, **job))
            session.flush()
            ranks = [{"rank": 0, "node": "n1"}]
            session.add(Attempt(job=name, number=0, generation=0, cause="start", ranks=ranks, started_at=now))


def recoveries_on(store: Store) -> Recoveries:
    return Recoveries(store, time.time, NodeReturns(store, time.time), lambda _incident: diagnosis("process_killed_sigkill"))


@pytest.mark.acceptance
def test_no_step_is_taken_twice_by_two_replicas_at_once(stores: list[Store]) -> None:
    names = [f"job{number}" for number in range(JOBS)]
    run_jobs(stores[0], names)
    replicas = [recoveries_on(store) for store in stores]
    recoveries = []
    for number in range(JOBS):
        failed = ({"rank": 0, "node": "n1", "signal": 9},)
        with stores[number % 2].writing() as session:
            report = FailureReport(f"job{number}", 0, 0, f"k{number}", failed=failed)
            recoveries.append(replicas[number % 2].report(session, report).id)
    failures: list[BaseException] = []

    def supervise(replica: Recoveries) -> None:
        try:
            deadline = time.monotonic() + 200
            while time.monotonic() < deadline:
                for recovery in recoveries:
                    replica.advance(recovery)
                with replica.store.reading() as session:
                    if set(session.scalars(select(RecoveryRow.stage).where(RecoveryRow.id.in_(recoveries)))) == {"planned"}:
                        return
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=supervise, args=(replica,)) for replica in replicas for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with stores[0].reading() as session:
        commands = Counter(session.scalars(select(CommandRow.job).where(CommandRow.job.in_(names))))
        entries = select(TimelineEntry.incident_id, TimelineEntry.kind)
        ours = select(RecoveryRow.incident_id).where(RecoveryRow.id.in_(recoveries))
        steps = Counter(session.execute(entries.where(TimelineEntry.incident_id.in_(ours))).all())
    assert commands == dict.fromkeys(names, 1)
    assert {count for (_, kind), count in steps.items() if kind in ("diagnosed", "decided", "planned")} == {1}


@pytest.mark.acceptance
def test_a_plan_that_moves_jobs_waits_for_a_recovery_that_comes_to_plans_and_not_the_other_way_round(stores: list[Store]) -> None:
    store, names = stores[0], ["moved0", "moved1"]
    run_jobs(store, names)
    parts = [{"job": name, "nodes": ["n1"], "after": [], "recovery": None, "hit": False} for name in names]
    plan = {"stamp": "s", "state": "acting", "cause": "a test", "why": "better", "document": {}, "decided_by": "ann"}
    with store.writing() as session:
        session.add(PlanRow(parts=parts, created_at=time.time(), decided_at=time.time(), **plan))
    carried_out: list[bool] = []
    reconfigurations = Reconfigurations(stores[1], time.time, recoveries_on(stores[1]))
    ticking = threading.Thread(target=lambda: carried_out.append(reconfigurations.tick()))
    with store.writing() as session:
        hold_lock(session, "job:moved1")
        ticking.start()
        waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        wait_for(lambda: session.scalar(waiting), 60, "the plan that waits")
        # As what a recovery settles and carries out.
        hold_lock(session, "plans")
        hold_lock(session, "commands")
    ticking.join(60)
    assert carried_out == [True]
    with store.reading() as session:
        assert set(session.scalars(select(CommandRow.job).where(CommandRow.job.in_(names)))) == set(names)
