"""A store of many incidents, as months of a large cluster leave it, and one that a storm of alerts keeps joining."""

from __future__ import annotations

import time
from typing import Any

import httpx2
from sqlalchemy import insert

from rules.taxonomy import load_taxonomy
from service.migration import migrate
from service.store import Store
from service.store.incidents import Incident

__all__ = ["OPEN_SHARE", "alert", "fill_incidents", "notification", "storm"]

OPEN_SHARE = 50
STORM_BATCH = 500


def diagnosis(number: int, reason: str) -> dict[str, Any]:
    """As large as diagnoses are."""
    line = {"role": "root", "path": f"/logs/job-{number}/rank3.log", "rule": "PS-X", "trust": "job", "node": None, "rank": 3}
    evidence = [
        line | {"line": index, "text": f"RuntimeError: {reason} {index} " + "x" * 120, "time": None} for index in range(8)
    ]
    return {"version": 1, "reason": reason, "summary": f"{reason} on rank 3", "evidence": evidence, "alternatives": []}


def fill_incidents(url: str, count: int) -> None:
    """`count` incidents of the last 30 days, one in OPEN_SHARE of them open."""
    store = Store(url)
    migrate(store)
    now, reasons = time.time(), sorted(load_taxonomy().reasons.values(), key=lambda reason: reason.name)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        reason, seen = reasons[number % len(reasons)], now - (count - number) * 30 * 86400 / count
        is_open = number % OPEN_SHARE == 0
        rows.append(
            {
                "kind": "failure", "fingerprint": f"{number:032x}", "open_key": f"job-{number}" if is_open else None,
                "state": "detected" if is_open else "resolved", "severity": reason.severity.value, "reason": reason.name,
                "category": reason.category.value, "component": reason.component, "remedy": reason.remedy.value,
                "summary": f"{reason.name} on node gpu-{number % 512:03}", "source": "rule", "confidence": 0.9,
                "job": f"job-{number}", "node": f"gpu-{number % 512:03}", "occurrences": 1 + number % 3,
                "first_seen": seen, "last_seen": seen + 60, "closed_at": None if is_open else seen + 90,
                "diagnosis": diagnosis(number, reason.name),
            }
        )  # fmt: skip
    with store.writing() as session:
        for start in range(0, len(rows), 5_000):
            session.execute(insert(Incident), rows[start : start + 5_000])
    store.close()


def alert(fingerprint: str, status: str = "firing", **labels: str) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": "NicErrors", "severity": "warning", **labels},
        "annotations": {"summary": f"errors on {labels.get('instance', 'a node')}"},
        "startsAt": "2026-11-29T02:57:41Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph",
        "fingerprint": fingerprint,
    }


def notification(alerts: list[dict[str, Any]]) -> dict[str, Any]:
    """Alertmanager's webhook, version 4."""
    return {"version": "4", "groupKey": "{}", "status": "firing", "receiver": "pitstop", "truncatedAlerts": 0, "alerts": alerts}


def storm(client: httpx2.Client, count: int) -> str:
    """`count` different alerts about a job that has just failed; the id of the incident that they join."""
    client.post("/api/v1/jobs", json={"job": "stormy", "ranks": 1}).raise_for_status()
    failure = {"attempt": 0, "generation": 0, "idempotency_key": "storm"}
    incident = client.post("/api/v1/jobs/stormy/failures", json=failure).raise_for_status().json()["incident"]
    for start in range(0, count, STORM_BATCH):
        alerts = [
            alert(f"storm-{number}", instance=f"nic-{number}", job_id="stormy")
            for number in range(start, min(count, start + STORM_BATCH))
        ]
        client.post("/api/v1/alerts/alertmanager", json=notification(alerts), timeout=120).raise_for_status()
    return str(incident)
