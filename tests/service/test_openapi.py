"""Schemathesis on the OpenAPI document of a running service: every answer is as it says, and nothing refused is stored."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from schemathesis.core.failures import FailureGroup
from sqlalchemy import func, select

from service.store import Store
from service.store.database import Base
from tests.service.postgres import postgres
from tests.service.service_process import ServiceProcess

SCALE = float(os.environ.get("SCALE", "1"))
SOUND = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
# Its answers never end.
ENDLESS = "/api/v1/events"
# What requests bring in; the other tables are written by work that goes on beside them.
BROUGHT_IN = (
    "alerts", "attempts", "batches", "candidates", "chunks", "dropped_lines", "evaluation_runs", "failures", "gpus", "jobs",
    "join_decisions", "maintenance", "node_aliases", "node_places", "nodes", "rank_states", "silences", "slurm_words", "streams",
)  # fmt: skip
KNOWN = {
    "job": "train", "run": "train", "node": "n1", "incident_id": 1, "number": 1, "id": 1, "plan": 1, "silence_id": 1,
    "kind": "epilog",
}  # fmt: skip


def fill(client: httpx2.Client) -> None:
    """One of most things, so that requests get past the names in their paths."""
    client.post("/api/v1/jobs", json={"job": "train", "ranks": 2}).raise_for_status()
    ranks = [{"rank": 0, "node": "n1"}]
    client.post("/api/v1/jobs/train/attempts", json={"attempt": 0, "generation": 1, "ranks": ranks}).raise_for_status()
    client.post("/api/v1/nodes/n1/lease", json={"boot_id": "b", "agent_id": "a", "clock": 1.0}).raise_for_status()
    failure = {"attempt": 0, "generation": 1, "idempotency_key": "k"}
    client.post("/api/v1/jobs/train/failures", json=failure).raise_for_status()
    client.post("/api/v1/trials/train", json={"state": "running"}).raise_for_status()


class Sent:
    """Sends the cases of one operation and notes what was wrong with the answers."""

    def __init__(self, client: httpx2.Client, store: Store) -> None:
        self.client, self.store = client, store
        self.session = requests.Session()
        self.answered = 0
        self.wrong: list[str] = []
        self.before = self.rows()

    def rows(self) -> dict[str, int]:
        tables = Base.metadata.tables
        with self.store.reading() as session:
            counts = [select(func.count()).select_from(tables[name]).scalar_subquery() for name in BROUGHT_IN]
            return dict(zip(BROUGHT_IN, session.execute(select(*counts)).one(), strict=True))

    def send(self, case: Any) -> None:
        answer = case.call(base_url=str(self.client.base_url), session=self.session, timeout=60, allow_redirects=False)
        self.answered += 1
        after = self.rows()
        if answer.status_code >= 400 and after != self.before:
            self.wrong.append(f"{case.method} {case.path}: {answer.status_code} and stored {after} after {self.before}")
        self.before = after
        try:
            case.validate_response(answer, checks=CHECKS.get_by_names(SOUND))
        except FailureGroup as group:
            text = answer.text[:300]
            self.wrong += [
                f"{case.method} {case.formatted_path} {case.query}: {answer.status_code} {error} {text}"
                for error in group.exceptions
            ]


def assault(service: ServiceProcess, database: str, examples: int) -> None:
    schemathesis.serializer.alias("application/x-ndjson", "application/octet-stream")
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    store = Store(database)
    with httpx2.Client(base_url=service.url, timeout=30) as client:
        fill(client)
        sent = Sent(client, store)
        operations = [operation.ok() for operation in schema.get_all_operations()]
        for operation in operations:
            if operation.path == ENDLESS:
                continue
            takes_anything = bool(operation.body) or any(True for _ in operation.iter_parameters())
            for mode in GenerationMode if takes_anything else (GenerationMode.POSITIVE,):
                # Some parameters take whatever text there is.
                with contextlib.suppress(Unsatisfiable) if mode is GenerationMode.NEGATIVE else contextlib.nullcontext():
                    assail(operation, mode, sent, examples)
        assert sent.wrong == []
        assert sent.answered >= examples * len(operations)
        assert client.get("/readyz").status_code == 200
    store.close()


def assail(operation: Any, mode: GenerationMode, sent: Sent, examples: int) -> None:
    """Send `examples` cases of one operation: those that its schema allows, or those that it does not."""

    @settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans())
    def send(case: Any, known: bool) -> None:
        if known:
            case.path_parameters |= {name: KNOWN[name] for name in case.path_parameters if name in KNOWN}
        sent.send(case)

    send()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceProcess, str]]:
    folder = tmp_path_factory.mktemp("service")
    url = f"sqlite:///{folder / 'pitstop.sqlite'}"
    with ServiceProcess(folder / "data", environment={"PITSTOP_DATABASE": url}) as service:
        yield service, url


@pytest.mark.acceptance
def test_every_answer_is_as_the_document_says_and_what_is_refused_is_not_stored(running: tuple[ServiceProcess, str]) -> None:
    assault(*running, 2)


LINE = b'{"line": "smuggled"}'
SHORT = b"Content-Length: 99"
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(LINE), LINE)


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: -1\r\n\r\n" + LINE,
        b"Content-Length: 0x14\r\n\r\n" + LINE,
        b"Content-Length: 20\r\nContent-Length: 3\r\n\r\n" + LINE,
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + LINE,
        b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED,
        b"Content-Length: 20\r\nAuthorization: Bearer \x00\xff\r\n\r\n" + LINE,
        b"Content-Length: 20\r\nHost: elsewhere\r\n\r\n" + LINE,
        b"Content-Length: 20\r\nOrigin: http://elsewhere\r\n\r\n" + LINE,
        b"Content-Length: 20\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n" + LINE,
        SHORT + b"\r\n\r\n" + LINE,
    ],
)
def test_headers_that_lie_get_no_answer_of_5xx_and_bring_nothing_in(running: tuple[ServiceProcess, str], rest: bytes) -> None:
    service, _ = running
    with socket.create_connection((service.host, service.port), timeout=30) as connection:
        host = b"" if b"Host:" in rest else b"Host: localhost\r\n"
        connection.sendall(b"POST /api/v1/logs HTTP/1.1\r\nConnection: close\r\n" + host + rest)
        if rest.startswith(SHORT):
            connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    # Nobody is there to be told that the body broke off.
    assert 400 <= int(answer.split(b" ", 2)[1]) < 500 if answer else rest.startswith(SHORT), answer[:300]
    assert service.get("/api/v1/logs?contains=smuggled")["items"] == []


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_requests_on_postgresql_get_no_answer_that_the_document_does_not_know(tmp_path: Path) -> None:
    with (
        postgres() as url,
        ServiceProcess(tmp_path / "data", environment={"PITSTOP_DATABASE": url}) as service,
    ):
        assault(service, url, max(3, int(40 * SCALE)))
