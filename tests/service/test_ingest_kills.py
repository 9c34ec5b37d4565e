"""kill -9 in the middle of ingest: every acknowledged line reads back exactly once, and none twice."""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2
import pytest

from tests.service.postgres import postgres
from tests.service.service_process import ServiceProcess

SCALE = float(os.environ.get("SCALE", "1"))
# 50 at full size; each takes a start of the service, so that a tenth gets few.
KILLS = max(2, round(50 * SCALE**1.3))
LINES = 200
STREAMS = 8


class Sender(threading.Thread):
    """Sends numbered lines until told to stop; whatever gets no answer is sent again. NDJSON with batch ids, or Loki without."""

    def __init__(self, url: str, name: str, protocol: str) -> None:
        super().__init__(name=name, daemon=True)
        self.url, self.protocol = url, protocol
        self.stopping = threading.Event()
        self.acknowledged: list[str] = []
        self.sent: set[str] = set()
        self.unanswered = 0

    def run(self) -> None:
        client = httpx2.Client(timeout=10)
        number = 0
        while not self.stopping.is_set():
            lines = [f"{self.name} batch {number} odd line {index} \u00e4" for index in range(LINES)]
            self.sent.update(lines)
            while not self.post(client, number, lines):
                self.unanswered += 1
                if self.stopping.is_set():
                    return
                time.sleep(0.05)
            self.acknowledged += lines
            number += 1

    def post(self, client: httpx2.Client, number: int, lines: list[str]) -> bool:
        with contextlib.suppress(httpx2.HTTPError):
            if self.protocol == "loki":
                stamp = 1_700_000_000_000_000_000 + number * LINES
                streams = [
                    {
                        "stream": {"job_id": self.name, "rank": str(rank)},
                        "values": [[str(stamp + index), line] for index, line in enumerate(lines) if index % STREAMS == rank],
                    }
                    for rank in range(STREAMS)
                ]
                return client.post(f"{self.url}/loki/api/v1/push", json={"streams": streams}).status_code == 204
            records = (
                {"job": self.name, "rank": index % STREAMS, "number": number * LINES + index, "time": 1.0, "line": line}
                for index, line in enumerate(lines)
            )
            body = b"".join(json.dumps(record).encode() + b"\n" for record in records)
            headers = {"Pitstop-Batch": f"{self.name}-{number}"}
            return client.post(f"{self.url}/api/v1/logs", content=body, headers=headers).status_code == 200
        return False


def everything(url: str) -> Iterator[str]:
    cursor = None
    with httpx2.Client(base_url=url, timeout=60) as client:
        while True:
            page = client.get("/api/v1/logs", params={"limit": 5000} | ({"cursor": cursor} if cursor else {})).json()
            yield from (item["line"] for item in page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                return


@contextlib.contextmanager
def database(kind: str) -> Iterator[dict[str, str]]:
    if kind == "sqlite":
        yield {}
    else:
        with postgres() as url:
            yield {"PITSTOP_DATABASE": url}


def await_progress(senders: Sequence[Sender], services: Sequence[ServiceProcess]) -> None:
    """Each has two more batches acknowledged."""
    wanted = [len(sender.acknowledged) + 2 * LINES for sender in senders]
    deadline = time.monotonic() + 200
    while any(len(sender.acknowledged) < count for sender, count in zip(senders, wanted, strict=True)):
        assert time.monotonic() < deadline, [service.log() for service in services]
        time.sleep(0.01)


def assert_exactly_once(senders: Sequence[Sender], url: str) -> None:
    for sender in senders:
        sender.stopping.set()
        sender.join(timeout=120)
    counted = Counter(everything(url))
    acknowledged = [line for sender in senders for line in sender.acknowledged]
    assert [line for line in acknowledged if counted[line] != 1] == []
    assert [line for line, count in counted.items() if count != 1] == []
    assert set(counted) <= set().union(*(sender.sent for sender in senders))


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_kills_during_ingest_lose_and_double_nothing(tmp_path: Path, kind: str) -> None:
    chance = random.Random(5)
    with database(kind) as environment, ServiceProcess(tmp_path / "data", environment=environment) as service:
        senders = [Sender(service.url, "agent", "ndjson"), Sender(service.url, "pusher", "loki")]
        for sender in senders:
            sender.start()
        for _ in range(KILLS):
            await_progress(senders, [service])
            time.sleep(chance.random() * 0.3)
            service.kill()
            service.start()
        assert_exactly_once(senders, service.url)


@pytest.mark.soak
def test_clients_of_the_other_replica_notice_nothing_when_one_is_killed(tmp_path: Path) -> None:
    chance = random.Random(6)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    with (
        database("postgresql") as environment,
        ServiceProcess(tmp_path / "one" / "data", environment=environment) as one,
        ServiceProcess(tmp_path / "other" / "data", environment=environment) as other,
    ):
        moved = [Sender(one.url, "agent", "ndjson"), Sender(one.url, "pusher", "loki")]
        stayed = [Sender(other.url, "agent2", "ndjson"), Sender(other.url, "pusher2", "loki")]
        for sender in (*moved, *stayed):
            sender.start()
        for _ in range(max(2, KILLS // 10)):
            await_progress([*moved, *stayed], [one, other])
            time.sleep(chance.random() * 0.3)
            one.kill()
            for sender in moved:
                sender.url = other.url
            await_progress([*moved, *stayed], [other])
            one.start()
            for sender in moved:
                sender.url = one.url
        await_progress([*moved, *stayed], [one, other])
        assert [sender.unanswered for sender in stayed] == [0, 0]
        assert_exactly_once([*moved, *stayed], other.url)
