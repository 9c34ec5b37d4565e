"""Heartbeats are held in memory and written together; what changes a job or the state of a rank does not wait for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from service.app import create_app
from service.heartbeats import KNOWN_SECONDS, RANK_STATE, WRITE_SECONDS, Heartbeat, Heartbeats
from service.ingest.matching import MatcherPool
from service.progress import Sighting
from service.settings import Settings
from service.state import Service
from service.store import Store
from service.store.accounts import GenerationRow
from service.store.database import CLOCK_MOVED_SECONDS
from service.store.jobs import Job, RankState, rank_states
from tests.service.test_jobs import JOB, attempt
from tests.service.test_leases import Time
from tests.service.transactions import commits

HOUR = 3600.0


def said(job: str, node: int, step: int, at: float, **fields: Any) -> Heartbeat:
    """Of a node with two ranks."""
    seen = tuple(Sighting(rank, "running", step, age_seconds=0.1) for rank in (2 * node, 2 * node + 1))
    return replace(Heartbeat(job, 0, 1, f"n{node}", seen, at), **fields)


def running_job(store: Store, name: str) -> None:
    fields: dict[str, Any] = {"command": [], "nodes": [], "ranks": 4, "created_at": 1.0, "updated_at": 1.0}
    with store.writing() as session:
        session.add(Job(name=name, state="running", generation=1, **fields))


def beat(heartbeats: Heartbeats, heartbeat: Heartbeat) -> None:
    """What the service does with one of a running job."""
    if heartbeats.standing(heartbeat.job, heartbeat.at) is None or not heartbeats.hold(heartbeat):
        heartbeats.add([heartbeat])


def steps(store: Store, job: str) -> list[int | None]:
    with store.reading() as session:
        return [row.step for row in rank_states(session, job)]


def test_the_heartbeats_of_many_nodes_are_one_transaction(store: Store) -> None:
    time = Time()
    heartbeats = Heartbeats(store, time)
    names = ["a", "b", "c"]
    for name in names:
        running_job(store, name)
        for node in (0, 1):
            beat(heartbeats, said(name, node, 1, time.now))
    with commits(store) as seen:
        for step in range(2, 6):
            for name in names:
                for node in (0, 1):
                    beat(heartbeats, said(name, node, step, time.now))
        assert not seen
        heartbeats.write()
        assert len(seen) == 1
        heartbeats.write()
        assert len(seen) == 1, "what is written is not written again"
    assert [steps(store, name) for name in names] == [[5] * 4] * 3
    with store.reading() as session:
        assert session.get_one(Job, "a").heartbeat_at == time.now
        assert session.get_one(GenerationRow, ("a", 1)).last_step == 5


@pytest.mark.parametrize("state", ["exited", "silent"])
def test_a_rank_whose_state_changes_is_written_at_once_with_what_is_held(store: Store, state: str) -> None:
    time = Time()
    heartbeats = Heartbeats(store, time)
    running_job(store, "a")
    for node in (0, 1):
        beat(heartbeats, said("a", node, 1, time.now))
    beat(heartbeats, said("a", 1, 7, time.now))
    changed = said("a", 0, 7, time.now)
    beat(heartbeats, replace(changed, seen=(replace(changed.seen[0], state=state), *changed.seen[1:])))
    with store.reading() as session:
        assert [row.state for row in rank_states(session, "a")] == [state, "running", "running", "running"]
    assert steps(store, "a") == [7] * 4


def test_a_heartbeat_is_answered_while_another_transaction_writes(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.heartbeats.KNOWN_SECONDS", HOUR)
    service: Service = client.app.state.pitstop  # type: ignore[attr-defined]
    client.post("/api/v1/jobs", json=JOB).raise_for_status()
    client.post("/api/v1/jobs/train/attempts", json=attempt(2)).raise_for_status()
    body = {"attempt": 0, "generation": 2, "node": "n0", "ranks": [{"rank": 0, "step": 7}]}
    client.post("/api/v1/jobs/train/heartbeat", json=body).raise_for_status()
    with service.store.writing() as session:
        session.connection()
        answer = client.post("/api/v1/jobs/train/heartbeat", json=body | {"ranks": [{"rank": 0, "step": 8}]})
        assert answer.json() == {"generation": 2, "accepted": True, "state": "running"}
    # A new attempt finds written what was held of the one before.
    client.post("/api/v1/jobs/train/attempts", json=attempt(3)).raise_for_status()
    assert steps(service.store, "train") == [8]
    assert client.post("/api/v1/jobs/train/heartbeat", json=body).json()["accepted"] is False
    assert client.post("/api/v1/jobs/train/heartbeat", json=body | {"ranks": [{"rank": -1}]}).status_code == 422


def test_another_replica_that_raised_the_generation_is_heard_with_the_next_write(store: Store) -> None:
    time = Time()
    heartbeats = Heartbeats(store, time)
    running_job(store, "a")
    beat(heartbeats, said("a", 0, 1, time.now))
    with store.writing() as session:
        session.get_one(Job, "a").generation = 2
    beat(heartbeats, said("a", 0, 9, time.now))
    heartbeats.write()
    assert steps(store, "a") == [1, 1]
    standing = heartbeats.standing("a", time.now)
    assert standing is not None and standing.generation == 2
    assert heartbeats.standing("a", time.now + KNOWN_SECONDS) is None
    assert heartbeats.standing("a", time.now - HOUR) is None


def test_what_could_not_be_written_is_held_until_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    heartbeats = Heartbeats(store, time)
    running_job(store, "a")
    beat(heartbeats, said("a", 0, 1, time.now))
    beat(heartbeats, said("a", 0, 2, time.now))
    with monkeypatch.context() as broken, pytest.raises(OperationalError):

        def full(*_: object) -> None:
            raise OperationalError("INSERT", {}, OSError("disk full"))

        broken.setattr("service.heartbeats.store_heartbeats", full)
        heartbeats.write()
    heartbeats.write()
    assert steps(store, "a") == [2, 2]


def test_what_is_held_is_written_when_the_service_stops(
    settings: Settings, pool: MatcherPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.heartbeats.WRITE_SECONDS", HOUR)
    app = create_app(settings, shared_pool=pool)
    body = {"attempt": 0, "generation": 0, "node": "n0", "ranks": [{"rank": 0, "step": 1}]}
    with TestClient(app, base_url="http://localhost", client=("127.0.0.1", 50000)) as client:
        client.post("/api/v1/jobs", json=JOB).raise_for_status()
        for step in (1, 2, 3, 4):
            said = body | {"ranks": [{"rank": 0, "step": step}]}
            client.post("/api/v1/jobs/train/heartbeat", json=said).raise_for_status()
    store = Store(settings.database_url)
    assert steps(store, "train") == [4]
    store.close()


def check_that_the_newest_stays(store: Store) -> None:
    """Whichever replica writes last; unless its time is of a clock that was moved back since."""
    time = Time()
    running_job(store, "a")
    replicas = [Heartbeats(store, time) for _ in range(2)]
    for replica, step, at in ((0, 5, 2.0), (1, 4, 1.0), (1, 6, 2.0)):
        replicas[replica].add([said("a", 0, step, time.now + at)])
    assert steps(store, "a") == [6, 6]
    replicas[1].add([said("a", 0, 3, time.now - CLOCK_MOVED_SECONDS)])
    assert steps(store, "a") == [3, 3]


def test_a_heartbeat_that_another_replica_wrote_later_stays(store: Store) -> None:
    check_that_the_newest_stays(store)


def test_a_held_heartbeat_is_shown_within_a_second_and_with_all_that_a_rank_says() -> None:
    assert WRITE_SECONDS <= 0.5 and KNOWN_SECONDS > 1 + WRITE_SECONDS
    assert {column.name for column in RankState.__table__.columns} == {"job", "rank", *RANK_STATE}


def test_where_a_job_stands_stays_known_while_nothing_can_be_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    heartbeats = Heartbeats(store, time)
    running_job(store, "a")
    beat(heartbeats, said("a", 0, 1, time.now))

    def busy() -> None:
        raise OperationalError("BEGIN IMMEDIATE", {}, OSError("database is locked"))

    monkeypatch.setattr(heartbeats, "write", busy)
    for _ in range(4):
        time.now += KNOWN_SECONDS / 2
        with pytest.raises(OperationalError):
            heartbeats.work()
        assert heartbeats.standing("a", time.now) is not None
    with store.writing() as session:
        session.get_one(Job, "a").state = "finished"
    with pytest.raises(OperationalError):
        heartbeats.work()
    assert heartbeats.standing("a", time.now) is None


def test_writes_that_take_long_leave_the_writer_to_others_for_most_of_the_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = Time()
    monkeypatch.setattr("service.heartbeats.time.monotonic", moment)
    heartbeats = Heartbeats(store, moment)
    written: list[float] = []

    def write() -> None:
        written.append(moment.now)
        moment.now += 2.0

    monkeypatch.setattr(heartbeats, "write", write)
    while moment.now < Time().now + 60:
        heartbeats.work()
        moment.now += WRITE_SECONDS
    assert 7 <= len(written) <= 8
