"""What goes, what stays, and what happens when there is no room; who does it where there are several."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from rules.signal import Trust
from service.app import create_app
from service.chunks import ChunkEncoder
from service.duties import LEASE_SECONDS, Duties, Duty
from service.incidents import FailureReport, open_or_update_incident
from service.ingest.matching import MatcherPool
from service.ingest.preparation import Door, Prepared, PreparedStream
from service.ingest.protocol import StreamKey
from service.ingest.writer import ChunkWriter
from service.migration import migrate
from service.retention import Retention, Storage, used_bytes
from service.settings import Settings, load_settings
from service.store import Store
from service.store.access import Switch
from service.store.incidents import Incident
from service.store.jobs import Node, NodeAlias
from service.store.logs import Chunk, Stream
from service.timeline import IncidentState, move
from tests.service.postgres import postgres

DAY = 86400.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def fill(store: Store, clock: Clock, job: str | None, chunks: int, size: int = 1000, node: str | None = None) -> None:
    """`chunks` chunks of one line of incompressible text each."""
    writer = ChunkWriter(store, clock, 1 << 30)
    for number in range(chunks):
        text = os.urandom(size // 2).hex().encode()
        data = ChunkEncoder().encode([(number, 0, text)])
        stream = PreparedStream(
            job or str(node), StreamKey(job, 1, node, 0, "-"), Trust.JOB, 1, len(text) + 1, 1.0, 1.0, data, {}
        )
        prepared = Prepared((stream,), 1, 1, 0, bytes=len(text) + 1)
        writer.submit(prepared, Door.NDJSON, "test", None, False).result(timeout=120)
    writer.close()


def chunks_of(store: Store) -> dict[str, int]:
    with store.reading() as session:
        rows = session.execute(select(Stream.job, func.count()).join(Chunk, Chunk.stream_id == Stream.id).group_by(Stream.job))
        return {row[0]: row[1] for row in rows}


def fail(store: Store, clock: Callable[[], float], job: str) -> int:
    with store.writing() as session:
        return open_or_update_incident(session, FailureReport(job, 1, 1, "k"), clock()).incident.id


def test_old_lines_go_and_those_of_an_open_incident_stay_until_it_is_closed(store: Store, tmp_path: Path) -> None:
    clock = Clock()
    retention = Retention(store, load_settings(data_dir=tmp_path, log_days=1), clock)
    fill(store, clock, "routine", 2)
    fill(store, clock, "failed", 2)
    incident = fail(store, clock, "failed")
    clock.now += 2 * DAY
    fill(store, clock, "fresh", 1)
    retention.work()
    assert chunks_of(store) == {"failed": 2, "fresh": 1}
    with store.writing() as session:
        move(session, session.get_one(Incident, incident), IncidentState.RESOLVED, "done", at=clock())
    retention.work()
    assert chunks_of(store) == {"fresh": 1}


def test_what_a_job_says_long_after_its_failure_goes_though_its_incident_is_open(store: Store, tmp_path: Path) -> None:
    clock = Clock()
    retention = Retention(store, load_settings(data_dir=tmp_path, log_days=1), clock)
    fill(store, clock, "failed", 2)
    fail(store, clock, "failed")
    clock.now += DAY / 2
    fill(store, clock, "failed", 3)
    clock.now += 2 * DAY
    retention.work()
    assert chunks_of(store) == {"failed": 2}


def test_what_the_node_at_fault_said_by_itself_stays_with_the_incident(store: Store, tmp_path: Path) -> None:
    clock = Clock()
    retention = Retention(store, load_settings(data_dir=tmp_path, log_days=1), clock)
    for node in ("n1", "n1.cluster.example", "n2"):
        fill(store, clock, None, 1, node=node)
    incident = fail(store, clock, "failed")
    with store.writing() as session:
        session.add(Node(id="n1", state="ready", versions={}, seen_at=clock()))
        session.flush()
        session.add(NodeAlias(alias="n1.cluster.example", node="n1", learnt_from="agent"))
        session.get_one(Incident, incident).node = "n1"
    clock.now += 2 * DAY
    retention.work()
    with store.reading() as session:
        kept = session.scalars(select(Stream.node).join(Chunk, Chunk.stream_id == Stream.id))
        assert sorted(map(str, kept)) == ["n1", "n1.cluster.example"]


def test_a_job_over_its_bytes_loses_its_oldest_lines_only(store: Store, tmp_path: Path) -> None:
    clock = Clock()
    fill(store, clock, "loud", 24, 100_000)
    fill(store, clock, "quiet", 3)
    Retention(store, load_settings(data_dir=tmp_path, max_job_log_bytes=1 << 20), clock).work()
    left = chunks_of(store)
    assert left["quiet"] == 3 and left["loud"] == 10
    with store.reading() as session:
        kept = session.scalars(
            select(Chunk.sequence).join(Stream, Stream.id == Chunk.stream_id).where(Stream.job == "loud")
        ).all()
    assert sorted(kept) == list(range(15, 25))


def assert_room_is_made(store: Store, settings: Settings, lines_bytes: int) -> None:
    """`lines_bytes`: how much is sent, of which about half has room."""
    clock, storage = Clock(), Storage(store, settings)
    fill(store, clock, "loud", 20, lines_bytes // 20)
    storage.measure()
    assert storage.refusal is not None and "PITSTOP_MAX_STORED_BYTES" in storage.refusal
    Retention(store, settings, clock).work()
    storage.measure()
    assert storage.refusal is None
    assert 5 < chunks_of(store)["loud"] < 20


def test_at_the_budget_lines_are_refused_and_retention_makes_room(store: Store, tmp_path: Path) -> None:
    assert_room_is_made(store, load_settings(data_dir=tmp_path, max_stored_bytes=2 << 20), 4_000_000)


@pytest.mark.acceptance
def test_on_postgresql_the_room_that_deleted_lines_leave_counts_as_room(tmp_path: Path) -> None:
    with postgres() as url:
        store = Store(url)
        migrate(store)
        budget = used_bytes(store) + (8 << 20)
        assert_room_is_made(store, load_settings(data_dir=tmp_path, database=url, max_stored_bytes=budget), 20_000_000)
        store.close()


def test_pinned_evidence_is_not_deleted_for_room(store: Store, tmp_path: Path) -> None:
    clock = Clock()
    settings = load_settings(data_dir=tmp_path, max_stored_bytes=2 << 20)
    fill(store, clock, "failed", 20, 200_000)
    fail(store, clock, "failed")
    Retention(store, settings, clock).work()
    assert chunks_of(store)["failed"] == 20
    storage = Storage(store, settings)
    storage.measure()
    assert storage.check() != "ok"


def test_a_door_without_room_says_so_with_503(tmp_path: Path, pool: MatcherPool) -> None:
    settings = load_settings(data_dir=tmp_path / "data", max_stored_bytes=1 << 20)
    with TestClient(create_app(settings, shared_pool=pool), base_url="http://localhost", client=("127.0.0.1", 1)) as client:
        # Pinned by an open incident, so that retention cannot make room.
        fail(client.app.state.pitstop.store, time.time, "j")  # type: ignore[attr-defined]
        lines = [json.dumps({"job": "j", "attempt": 1, "line": os.urandom(100_000).hex()}).encode() for _ in range(10)]
        assert client.post("/api/v1/logs", content=b"\n".join(lines)).status_code == 200
        deadline = time.monotonic() + 120
        answer = client.post("/api/v1/logs", content=b"")
        while answer.status_code == 200 and time.monotonic() < deadline:
            time.sleep(0.1)
            answer = client.post("/api/v1/logs", content=b"")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "PITSTOP_MAX_STORED_BYTES" in answer.json()["detail"]
        assert client.get("/readyz").status_code == 503


def test_a_verified_incident_is_closed_after_the_hold(store: Store, tmp_path: Path) -> None:
    clock = Clock()
    retention = Retention(store, load_settings(data_dir=tmp_path, flap_hold_seconds=600), clock)
    number = fail(store, clock, "train")
    with store.writing() as session:
        move(session, session.get_one(Incident, number), IncidentState.VERIFIED, "steps advance", at=clock())
    for seconds, state in ((599, "verified"), (2, "resolved")):
        clock.now += seconds
        retention.work()
        with store.reading() as session:
            assert session.get_one(Incident, number).state == state


def test_duties_are_done_by_one_and_taken_over_when_it_is_gone(store: Store) -> None:
    clock = Clock()
    done: list[str] = []
    first = Duties(store, clock, (Duty("count", 1.0, lambda: done.append("first")),), name="first")
    second = Duties(store, clock, (Duty("count", 1.0, lambda: done.append("second")),), name="second")
    for _ in range(3):
        first.tick()
        second.tick()
        clock.now += 2
    assert done == ["first"] * 3
    assert second.report()["holder"] == "first"
    clock.now += LEASE_SECONDS
    second.tick()
    first.tick()
    assert done[3:] == ["second"]


def test_a_held_lease_is_renewed_in_time_and_not_written_every_round(store: Store) -> None:
    clock, written = Clock(), set()
    first, second = Duties(store, clock, (), name="first"), Duties(store, clock, (), name="second")
    for _ in range(30):
        first.tick()
        second.tick()
        assert (first.held, second.held) == (True, False)
        with store.reading() as session:
            written.add(session.get_one(Switch, "duties").set_at)
        clock.now += 2
    assert len(written) <= 10


def test_a_lease_that_ends_well_is_given_up_at_once(store: Store) -> None:
    clock = Clock()
    first, second = Duties(store, clock, (), name="first"), Duties(store, clock, (), name="second")

    async def begin_and_end() -> None:
        running = asyncio.create_task(first.run())
        while first.report()["holder"] is None:
            await asyncio.sleep(0.01)
        first.close()
        await running

    asyncio.run(begin_and_end())
    second.tick()
    assert second.report()["holder"] == "second"


def test_a_duty_that_fails_does_not_stop_the_others(store: Store) -> None:
    done: list[int] = []

    def fails() -> None:
        raise ValueError("broken")

    Duties(store, Clock(), (Duty("broken", 1.0, fails), Duty("fine", 1.0, lambda: done.append(1)))).tick()
    assert done == [1]


def test_collectors_show_lines_lag_and_errors(client: TestClient) -> None:
    client.post("/api/v1/logs", content=b'{"line": "x", "time": 1000}')
    client.post("/loki/api/v1/push", content=b"garbage")
    client.post("/loki/api/v1/push", json={"streams": [{"stream": {}, "values": [["1", "a"]]}]})
    client.post("/api/v1/alerts/alertmanager", json={"version": "4", "alerts": []})
    found = {item["name"]: item for item in client.get("/api/v1/collectors").json()["items"]}
    assert found["ndjson/local"]["lines"] == 1 and found["ndjson/local"]["lag_seconds"] > 1e6
    assert (found["loki/local"]["lines"], found["loki/local"]["errors"]) == (1, 1)
    assert "snappy" in found["loki/local"]["last_error"]
    assert found["alertmanager/local"]["protocol"] == "alertmanager"
