"""Alertmanager's webhook while lines come in at half of what the service can take: how soon an alert is stored and answered.
Loki pushes of 1,000 lines, 80 % of them routine, 64 streams, fsync on; capacity is measured first, in the same run."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import time
from pathlib import Path

import httpx2

from benchmarks.ingest import LINES, lines, loki
from tests.service.many_incidents import alert, notification
from tests.service.service_process import ServiceProcess

SCALE = float(os.environ.get("SCALE", "1"))
CAPACITY_SECONDS, SECONDS = max(5.0, 20 * SCALE), max(10.0, 60 * SCALE)
ROUTINE, SENDERS = 0.8, 4
ALERTS_A_SECOND = 10
HEADERS = {"Content-Type": "application/json", "Content-Encoding": "gzip"}


class Pushes:
    """Senders that push lines until told to stop: one batch `every` seconds of all of them, or as fast as answers come."""

    def __init__(self, url: str, every: float | None) -> None:
        self.url, self.every = url, every
        self.taken = self.refused = 0
        self._numbers, self._over, self._lock = itertools.count(time.time_ns() // 10**9), threading.Event(), threading.Lock()
        self._began = time.monotonic()
        self._turns = itertools.count()
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(SENDERS)]

    def __enter__(self) -> Pushes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        with httpx2.Client(base_url=self.url, timeout=60) as client:
            while not self._over.is_set():
                with self._lock:
                    number, turn = next(self._numbers), next(self._turns)
                body = loki(lines(ROUTINE, number), number)
                if self.every is not None and self._over.wait(max(0.0, self._began + turn * self.every - time.monotonic())):
                    return
                status = client.post("/loki/api/v1/push", content=body, headers=HEADERS).status_code
                with self._lock:
                    self.taken += status == 204
                    self.refused += status != 204


def latencies(client: httpx2.Client, seconds: float, name: str) -> list[float]:
    """Milliseconds of one alert after the other, each a new one, sorted."""
    took, began = [], time.monotonic()
    for number in itertools.count():
        time.sleep(max(0.0, began + number / ALERTS_A_SECOND - time.monotonic()))
        if time.monotonic() - began > seconds:
            return sorted(took)
        body = notification([alert(f"{name}-{number}", instance=f"{name}-{number}")])
        asked = time.perf_counter()
        client.post("/api/v1/alerts/alertmanager", json=body).raise_for_status()
        took.append(1e3 * (time.perf_counter() - asked))
    return []


def row(name: str, took: list[float]) -> str:
    places = (took[len(took) // 2], took[int(0.99 * len(took))], took[-1])
    return f"| {name} | {len(took)} | " + " | ".join(f"{value:.1f}" for value in places) + " |"


def run() -> str:
    """The table for benchmarks/results/webhook.md."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ServiceProcess(Path(folder) / "data") as service,
        httpx2.Client(base_url=service.url, timeout=60) as client,
    ):
        quiet = latencies(client, SECONDS / 2, "quiet")
        began = time.monotonic()
        with Pushes(service.url, None) as most:
            time.sleep(CAPACITY_SECONDS)
        # Until the last answers are there: on a slow machine a batch may take as long as all of this.
        capacity = most.taken / (time.monotonic() - began)
        with Pushes(service.url, 2 / capacity) as half:
            time.sleep(2)
            before = half.taken
            busy = latencies(client, SECONDS, "busy")
            pushed = (half.taken - before) / SECONDS
    rates = (
        f"Capacity: {capacity * LINES:,.0f} lines a second from {SENDERS} senders on the same machine; half of it: "
        f"{pushed * LINES:,.0f} were taken a second, {half.refused} pushes refused. Required: p99 under 100 ms.\n"
    )
    return "\n".join(
        [
            f"# The webhook under load\n\n{__doc__}\n",
            rates,
            "| while | alerts | p50, ms | p99, ms | worst, ms |\n|---|---|---|---|---|",
            row("no lines come in", quiet),
            row("lines come in at half of capacity", busy),
        ]
    )
