"""A hundred thousand incidents, one of them with ten thousand alerts: lists count them all, pages join, nothing is left out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx2
import pytest

from service.store.incidents import SHOWN_ENTRIES
from tests.service.many_incidents import OPEN_SHARE, fill_incidents, storm
from tests.service.service_process import ServiceProcess

SCALE = float(os.environ.get("SCALE", "1"))
INCIDENTS, ALERTS = int(100_000 * SCALE), int(10_000 * SCALE)


def pages(client: httpx2.Client, **query: Any) -> tuple[list[dict[str, Any]], set[int]]:
    """All items of a listing, and the totals that its pages told."""
    items, totals, cursor = [], set(), None
    while True:
        page = client.get("/api/v1/incidents", params={**query, "limit": 500, **({"cursor": cursor} if cursor else {})}).json()
        items += page["items"]
        totals.add(page["total"])
        cursor = page["next_cursor"]
        if cursor is None:
            return items, totals


@pytest.mark.soak
def test_lists_of_a_hundred_thousand_incidents_are_whole_and_one_with_ten_thousand_alerts_counts_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'pitstop.sqlite'}"
    fill_incidents(url, INCIDENTS)
    with (
        ServiceProcess(tmp_path / "data", environment={"PITSTOP_DATABASE": url}) as service,
        httpx2.Client(base_url=service.url, timeout=60) as client,
    ):
        stormy = storm(client, ALERTS)
        opened = -(-INCIDENTS // OPEN_SHARE) + 1
        for query, count in (({"open": True}, opened), ({"open": False}, INCIDENTS + 1 - opened), ({"job": "job-7"}, 1)):
            items, totals = pages(client, **query)
            assert totals == {count} and len({item["id"] for item in items}) == len(items) == count
            assert [item["last_seen"] for item in items] == sorted((item["last_seen"] for item in items), reverse=True)
        incident = client.get(f"/api/v1/incidents/{stormy}").json()
    assert incident["alerts"]["total"] == ALERTS
    assert incident["timeline_total"] > ALERTS and len(incident["timeline"]) == min(SHOWN_ENTRIES, incident["timeline_total"])
    assert incident["alerts"]["items"][0]["fingerprint"] == f"storm-{ALERTS - 1}"
