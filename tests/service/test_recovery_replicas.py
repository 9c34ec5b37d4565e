"""Two replicas on one PostgreSQL advance the same recoveries at the same time: every step is taken once."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from sqlalchemy import select

from service.incidents import FailureReport
from service.migration import migrate
from service.node_returns import NodeReturns
from service.recoveries import Recoveries
from service.store import Store
from service.store.incidents import TimelineEntry
from service.store.jobs import Attempt, Job, Node
from service.store.recoveries import CommandRow, RecoveryRow
from tests.service.postgres import postgres
from tests.service.test_recoveries import diagnosis

JOBS = 12


def prepare(store: Store) -> None:
    migrate(store)
    now = time.time()
    with store.writing() as session:
        session.add(Node(id="n1", state="ready", versions={}, lease_until=now + 3600, seen_at=now))
        for number in range(JOBS):
            job = {"ranks": 1, "nodes": ["n1"], "command": [], "generation": 0, "weight": 1.0, "modes": {}, "state": "running"}
            session.add(Job(name=f"job{number}", created_at=now, updated_at=now, local=False, **job))
            session.flush()
            ranks = [{"rank": 0, "node": "n1"}]
            session.add(Attempt(job=f"job{number}", number=0, generation=0, cause="start", ranks=ranks, started_at=now))


@pytest.mark.acceptance
def test_no_step_is_taken_twice_by_two_replicas_at_once() -> None:
    with postgres() as url:
        stores = [Store(url), Store(url)]
        prepare(stores[0])
        replicas = [
            Recoveries(store, time.time, NodeReturns(store, time.time), lambda _incident: diagnosis("process_killed_sigkill"))
            for store in stores
        ]
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
                        if set(session.scalars(select(RecoveryRow.stage))) == {"planned"}:
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
            commands = Counter(session.scalars(select(CommandRow.job)))
            steps = Counter(session.execute(select(TimelineEntry.incident_id, TimelineEntry.kind)).all())
        assert commands == {f"job{number}": 1 for number in range(JOBS)}
        assert {count for (_, kind), count in steps.items() if kind in ("diagnosed", "decided", "planned")} == {1}
        for store in stores:
            store.close()
