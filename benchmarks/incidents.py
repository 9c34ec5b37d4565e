"""Lists of incidents and one incident through the API of a real service: 100,000 incidents with their diagnoses, one with 10,000
alerts; beside the same questions to a service with 100 incidents, one with 10 alerts."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import httpx2

from tests.service.many_incidents import fill_incidents, storm
from tests.service.service_process import ServiceProcess

SCALE = float(os.environ.get("SCALE", "1"))
MANY, FEW = (int(100_000 * SCALE), int(10_000 * SCALE)), (100, 10)
ASKED = 50
LISTS = {
    "list, first page": "/api/v1/incidents",
    "list, page 500": "/api/v1/incidents?limit=100&cursor=50000",
    "open ones": "/api/v1/incidents?open=true",
    "closed ones": "/api/v1/incidents?open=false",
    "of one severity": "/api/v1/incidents?severity=SEV1",
    "of one job": "/api/v1/incidents?job=job-7",
    "of one node": "/api/v1/incidents?node=gpu-007",
}


def times(client: httpx2.Client, path: str) -> list[float]:
    """Milliseconds, sorted."""
    took = []
    for _ in range(ASKED):
        began = time.perf_counter()
        client.get(path).raise_for_status()
        took.append(1e3 * (time.perf_counter() - began))
    return sorted(took)


def asked(incidents: int, alerts: int) -> tuple[dict[str, list[float]], float]:
    """By question: answer times; and alerts taken a second."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'pitstop.sqlite'}"
        fill_incidents(url, incidents)
        with (
            ServiceProcess(Path(folder) / "data", environment={"PITSTOP_DATABASE": url}) as service,
            httpx2.Client(base_url=service.url, timeout=60) as client,
        ):
            began = time.perf_counter()
            stormy = storm(client, alerts)
            rate = alerts / (time.perf_counter() - began)
            questions = LISTS | {"the incident with the alerts": f"/api/v1/incidents/{stormy}"}
            return {name: times(client, path) for name, path in questions.items()}, rate


def run() -> str:
    """The table for benchmarks/results/incidents.md."""
    few, _ = asked(*FEW)
    many, rate = asked(*MANY)
    rows = []
    for name, took in many.items():
        middle, base = statistics.median(took), statistics.median(few[name])
        rows.append(f"| {name} | {middle:.1f} | {took[-1]:.1f} | {base:.1f} | {middle / base:.1f} |")
    head = (
        f"# Many incidents\n\n{__doc__}\n\nRequired: under 300 ms. Each asked {ASKED} times, on SQLite.\n\n"
        "| what | median, ms | worst, ms | median with few, ms | times |\n|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + f"\n\nThe {MANY[1]:,} alerts were taken at {rate:,.0f} a second, 500 a notification."
