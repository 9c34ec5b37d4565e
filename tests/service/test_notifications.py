"""Who is told, once, through which channel, and what becomes of it where the channel does not answer; with a real receiver."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.app import create_app
from service.incidents import open_incident
from service.ingest.matching import MatcherPool
from service.metrics import Metrics
from service.notifications.delivery import Delivery
from service.notifications.routes import load_routes
from service.settings import Settings, SettingsError, load_settings
from service.store import Store
from service.store.incidents import Incident
from service.store.jobs import Job
from service.store.recoveries import Notification
from service.timeline import IncidentState, announce, move

HOSTILE = "<b>x</b> *y* \x1b[31m\u202e @channel"


@dataclass
class Receiver:
    """An HTTP server that keeps what it is sent and answers with `status`."""

    server: ThreadingHTTPServer
    status: int = 200
    got: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.server.server_port}/secret-path"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if receiver.status == 200:
                receiver.got.append(told)
            self.send_response(receiver.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    receiver = Receiver(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    thread = threading.Thread(target=receiver.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()
    thread.join()


@dataclass
class Desk:
    """The duty on a store, with a clock that the test turns."""

    store: Store
    file: Path
    now: float = 1_000_000.0

    def start(self, routes: str, url: str, public_url: str | None = None) -> Delivery:
        self.file.write_text(f"channels: {{hook: {{url: '{url}'}}}}\n{routes}\n")
        found = load_routes(self.file)
        assert found is not None
        delivery = Delivery(self.store, lambda: self.now, found, public_url, Metrics(self.store))
        delivery.work()
        return delivery

    def incident(self, fingerprint: str = "f", job: str | None = "train", **fields: Any) -> int:
        with self.store.writing() as session:
            if job and session.get(Job, job) is None:
                given = {"owner": "ada", "project": "vision"}
                session.add(job_row(job, self.now, **given))
            incident = open_incident(session, kind="alert", fingerprint=fingerprint, summary=HOSTILE, now=self.now, job=job)
            for name, value in fields.items():
                setattr(incident, name, value)
            announce(session, incident, "incident.updated", self.now)
            return incident.id

    def to(self, number: int, state: IncidentState) -> None:
        with self.store.writing() as session:
            move(session, session.get_one(Incident, number), state, "test", at=self.now)

    def rows(self) -> list[Notification]:
        with self.store.reading() as session:
            return list(session.scalars(select(Notification).order_by(Notification.id)))


def job_row(name: str, now: float, **given: Any) -> Job:
    return Job(
        name=name, command=[], ranks=1, nodes=[], weight=1.0, modes={}, local=False, state="running", generation=0,
        created_at=now, updated_at=now, **given,
    )  # fmt: skip


@pytest.fixture
def desk(store: Store, tmp_path: Path) -> Desk:
    return Desk(store, tmp_path / "notify.yaml")


EVERYTHING = "routes: [{channels: [hook]}]"


def test_each_change_of_state_is_told_once_with_a_link(desk: Desk, receiver: Receiver) -> None:
    delivery = desk.start(EVERYTHING, receiver.url, "https://pitstop.example/")
    number = desk.incident()
    for _ in range(3):
        delivery.work()
    desk.to(number, IncidentState.RESOLVED)
    for _ in range(3):
        delivery.work()
    assert [told["message"].splitlines()[0].split(":")[0] for told in receiver.got] == ["detected", "resolved"]
    assert all(f"https://pitstop.example/incidents/{number}" in told["message"] for told in receiver.got)
    assert [row.channels["hook"]["state"] for row in desk.rows()] == ["sent", "sent"]


def test_another_process_that_takes_over_tells_nothing_twice(desk: Desk, receiver: Receiver) -> None:
    desk.start(EVERYTHING, receiver.url)
    desk.incident()
    desk.start(EVERYTHING, receiver.url)
    desk.start(EVERYTHING, receiver.url)
    assert len(receiver.got) == 1


def test_what_happened_before_anybody_asked_is_not_told(desk: Desk, receiver: Receiver) -> None:
    desk.incident()
    desk.start(EVERYTHING, receiver.url).work()
    assert receiver.got == []


def test_a_fault_that_flaps_is_quiet_until_its_time_is_over(desk: Desk, receiver: Receiver) -> None:
    delivery = desk.start("quiet_seconds: 600\n" + EVERYTHING, receiver.url)
    for _ in range(5):
        number = desk.incident("same")
        delivery.work()
        desk.to(number, IncidentState.RESOLVED)
        delivery.work()
        desk.now += 60
    assert len(receiver.got) == 2
    desk.now += 600
    desk.incident("same")
    delivery.work()
    assert len(receiver.got) == 3


def test_a_question_for_approval_is_never_quiet(desk: Desk, receiver: Receiver) -> None:
    delivery = desk.start(EVERYTHING, receiver.url)
    number = desk.incident()
    for _ in range(3):
        for state in (IncidentState.WAITING_FOR_APPROVAL, IncidentState.RECOVERING):
            desk.to(number, state)
            delivery.work()
    told = [told["message"].split(":")[0] for told in receiver.got]
    assert told.count("waiting for approval") == 3 and told.count("recovering") == 1


def test_routes_go_by_project_owner_and_severity(desk: Desk, receiver: Receiver) -> None:
    routes = "routes: [{match: {project: vision, owner: [ada, bob], severity: SEV1}, channels: [hook]}]"
    delivery = desk.start(routes, receiver.url)
    desk.incident("low", severity="SEV3")
    desk.incident("nobody's", job=None, severity="SEV1")
    delivery.work()
    assert receiver.got == []
    desk.incident("high", severity="SEV1")
    delivery.work()
    assert [told["title"].split("]")[0] for told in receiver.got] == ["[SEV1"]
    assert all(row.due_at is None for row in desk.rows())


def test_a_channel_that_fails_is_tried_again_with_growing_pauses_and_shown(desk: Desk, receiver: Receiver) -> None:
    delivery = desk.start(EVERYTHING, receiver.url)
    receiver.status = 500
    desk.incident()
    pauses = []
    for _ in range(4):
        delivery.work()
        (row,) = desk.rows()
        assert row.due_at is not None
        pauses.append(row.due_at - desk.now)
        desk.now = row.due_at
    assert pauses == [5.0, 10.0, 20.0, 40.0]
    shown = delivery.report()["hook"]
    assert shown["failures"] == 4 and "500" in shown["state"]
    assert "secret-path" not in json.dumps(delivery.report()) + json.dumps(desk.rows()[0].channels)
    receiver.status = 200
    delivery.work()
    assert len(receiver.got) == 1 and delivery.report()["hook"]["state"] == "ok"


def test_many_messages_do_not_each_ask_a_channel_that_fails(desk: Desk, receiver: Receiver) -> None:
    delivery = desk.start(EVERYTHING, receiver.url)
    receiver.status = 503
    for number in range(20):
        desk.incident(f"f{number}")
    delivery.work()
    assert sum(row.channels["hook"]["attempts"] for row in desk.rows()) == 1
    receiver.status, desk.now = 200, desk.now + 5
    delivery.work()
    assert len(receiver.got) == 20


def test_a_silenced_incident_calls_nobody_until_the_silence_ends(desk: Desk, receiver: Receiver) -> None:
    delivery = desk.start(EVERYTHING, receiver.url)
    desk.incident(silenced_until=desk.now + 300)
    delivery.work()
    assert receiver.got == []
    desk.now += 301
    delivery.work()
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("channels: {}", "channels"),
        ("channels: {a: {url: 'nonsense'}}\nroutes: [{channels: [a]}]", "'a' has no URL that Apprise knows"),
        ("channels: {a: {url: 'json://h', url_file: /x}}\nroutes: [{channels: [a]}]", "either url or url_file"),
        ("channels: {a: {url: 'json://h'}}\nroutes: [{channels: [b]}]", "'b', which is not among channels"),
        ("channels: {a: {url: 'json://h'}}\nroutes: [{match: {colour: red}, channels: [a]}]", "not 'colour'"),
        ("channels: [", "notify.yaml"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "notify.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_routes(file)
    assert says in str(caught.value) and "\n" not in str(caught.value) and "PITSTOP_NOTIFY_FILE" in str(caught.value)


def test_the_settings_page_and_readyz_show_channels_without_their_secrets(
    settings: Settings, pool: MatcherPool, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text("json://127.0.0.1:1/secret-path\n")
    file = tmp_path / "notify.yaml"
    file.write_text(f"channels: {{oncall: {{url_file: {tmp_path / 'url'}}}}}\nroutes: [{{channels: [oncall]}}]")
    application = create_app(load_settings(data_dir=settings.data_dir, notify_file=file), shared_pool=pool)
    with TestClient(application, base_url="http://localhost", client=("127.0.0.1", 50000)) as client:
        page, ready = client.get("/settings").text, client.get("/readyz").json()
    assert "oncall" in page and ready["notifications"] == {"oncall": {"state": "nothing sent yet", "failures": 0}}
    assert "secret-path" not in page + json.dumps(ready)


def test_the_page_of_an_incident_says_what_became_of_each_message(client: TestClient, desk: Desk, receiver: Receiver) -> None:
    service = client.app.state.pitstop  # type: ignore[attr-defined]
    # By the clock of its own duties, which forget events of long ago.
    desk.store, desk.now = service.store, service.clock()
    delivery = desk.start(EVERYTHING, receiver.url)
    receiver.status = 500
    number = desk.incident()
    delivery.work()
    page = client.get(f"/incidents/{number}").text
    assert "hook: waiting" in page and "500" in page and "&lt;b&gt;x&lt;/b&gt;" in page
