"""Many alerts in one notification: few statements, the same outcome as one by one, and no waiting in a circle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, event, select

from rules.identity import JOB_KEYS
from service.alerts import receive_alerts
from service.incidents import FailureReport, open_or_update_incident
from service.ingest.alertmanager import Notification
from service.migration import migrate
from service.store import Store
from service.store.events import Event
from service.store.incidents import Alert, Failure, Incident, TimelineEntry
from service.store.jobs import Node
from tests.service.many_incidents import alert, notification
from tests.service.postgres import postgres

NOW = 1_795_000_000.0
HOLD_SECONDS = 300.0
# However many alerts a notification has.
MOST_STATEMENTS = 24


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if request.param == "sqlite":
        store = Store(f"sqlite:///{tmp_path_factory.mktemp('storm') / 'pitstop.sqlite'}")
        migrate(store)
        yield store
        store.close()
        return
    with postgres() as url:
        store = Store(url)
        migrate(store)
        yield store
        store.close()


@pytest.fixture
def emptied(database: Store) -> Store:
    empty(database)
    return database


def empty(store: Store) -> None:
    with store.writing() as session:
        for table in (Alert, Failure, TimelineEntry, Event, Incident, Node):
            session.execute(delete(table))


def tell(store: Store, alerts: list[dict[str, Any]], now: float = NOW) -> tuple[int, ...]:
    message = Notification.model_validate(notification(alerts))
    with store.writing() as session:
        return receive_alerts(session, message, now, job_keys=JOB_KEYS, hold_seconds=HOLD_SECONDS).incidents


def fail(store: Store, job: str) -> None:
    with store.writing() as session:
        open_or_update_incident(session, FailureReport(job, 0, 0, "k"), NOW)


def statements(store: Store, alerts: list[dict[str, Any]]) -> int:
    counted: list[str] = []

    def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        # SQLite tells the key of a new row only to a statement of its own.
        if not (store.is_sqlite and statement.startswith("INSERT INTO incidents")):
            counted.append(statement)

    event.listen(store.engine, "before_cursor_execute", count)
    try:
        tell(store, alerts)
    finally:
        event.remove(store.engine, "before_cursor_execute", count)
    return len(counted)


@pytest.mark.parametrize("job", [None, "train"])
def test_a_notification_of_many_alerts_takes_as_few_statements_as_one_of_few(emptied: Store, job: str | None) -> None:
    labels = {} if job is None else {"job_id": job}
    if job is not None:
        fail(emptied, job)
    for status in ("firing", "firing", "resolved", "firing"):
        few, many = (
            statements(
                emptied, [alert(f"{count}-{number}", status, instance=f"{count}-{number}", **labels) for number in range(count)]
            )
            for count in (5, 100)
        )
        assert few == many <= MOST_STATEMENTS


def test_what_one_alert_frees_the_next_of_the_same_notification_may_take(emptied: Store) -> None:
    with emptied.writing() as session:
        session.add(Node(id="n7", state="ready", versions={}, seen_at=NOW))
    (first,) = tell(emptied, [alert("a", node="n7")])
    tell(emptied, [alert("a", "resolved", node="n7")])
    (second,) = tell(emptied, [alert("b", node="n7")])
    assert tell(emptied, [alert("b", "resolved", node="n7"), alert("a", node="n7")]) == (second, first)
    with emptied.reading() as session:
        states = {incident.id: incident.state for incident in session.scalars(select(Incident))}
    assert states == {first: "detected", second: "resolved"}


def test_notifications_about_the_same_alerts_in_opposite_order_wait_for_each_other(emptied: Store) -> None:
    names, each = [f"f{number}" for number in range(20)], 4
    orders = [[alert(name) for name in names], [alert(name) for name in reversed(names)]]
    with ThreadPoolExecutor(len(orders)) as threads:
        for told in [threads.submit(tell, emptied, alerts) for alerts in orders for _ in range(each)]:
            told.result()
    with emptied.reading() as session:
        occurrences = session.scalars(select(Incident.occurrences)).all()
    assert occurrences == [each * len(orders)] * len(names)


def test_an_alert_and_the_failure_of_its_job_at_one_moment_are_one_incident(emptied: Store) -> None:
    jobs = [f"job-{number}" for number in range(10)]
    together = threading.Barrier(2)

    def all_alerts() -> None:
        for job in jobs:
            together.wait()
            tell(emptied, [alert(job, job_id=job)])

    def all_failures() -> None:
        for job in jobs:
            together.wait()
            fail(emptied, job)

    with ThreadPoolExecutor(2) as threads:
        for told in [threads.submit(all_alerts), threads.submit(all_failures)]:
            told.result()
    with emptied.reading() as session:
        assert sorted(str(job) for job in session.scalars(select(Incident.job))) == jobs


def outcome(store: Store) -> tuple[Any, ...]:
    """All that people can see of the incidents, whatever their ids."""
    with store.reading() as session:
        incidents = session.scalars(select(Incident).order_by(Incident.id)).all()
        place = {incident.id: number for number, incident in enumerate(incidents)}
        alerts = session.scalars(select(Alert).order_by(Alert.id)).all()
        entries = session.scalars(select(TimelineEntry).order_by(TimelineEntry.id)).all()
        stories = {
            number: [(e.kind, e.text, e.actor, e.data) for e in entries if place[e.incident_id] == number]
            for number in place.values()
        }
        return (
            [
                (i.kind, i.state, i.fingerprint, i.open_key, i.summary, i.occurrences, i.closed_at, i.job, i.node)
                for i in incidents
            ],
            [(place[a.incident_id], a.fingerprint, a.status, a.received, a.labels) for a in alerts],
            stories,
        )


ABOUT = [
    {"node": "n7"},
    {"node": "N7.cluster.example"},
    {"node": "elsewhere"},
    {"job_id": "train"},
    {"job_id": "quiet", "node": "n7"},
]
MESSAGES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["firing", "resolved"])), min_size=1, max_size=12)


def test_a_notification_of_many_alerts_does_what_as_many_of_one_alert_do(tmp_path: Path) -> None:
    stores = [Store(f"sqlite:///{tmp_path / name}.sqlite") for name in ("at once", "one by one")]
    for store in stores:
        migrate(store)

    @settings(max_examples=10, suppress_health_check=list(HealthCheck))
    @given(st.lists(MESSAGES, min_size=1, max_size=3), st.sampled_from([10.0, 2 * HOLD_SECONDS]))
    def same(notifications: list[list[tuple[int, str]]], pause: float) -> None:
        for store in stores:
            empty(store)
            with store.writing() as session:
                session.add(Node(id="n7", state="ready", versions={}, seen_at=NOW))
            fail(store, "train")
        now = NOW
        for turn, messages in enumerate(notifications):
            alerts = [
                alert(f"f{number}", status, **ABOUT[number % len(ABOUT)]) | {"startsAt": f"2026-11-29T02:57:4{turn}Z"}
                for number, status in messages
            ]
            tell(stores[0], alerts, now)
            for one in alerts:
                tell(stores[1], [one], now)
            now += pause
        assert outcome(stores[0]) == outcome(stores[1])

    same()
    for store in stores:
        store.close()
