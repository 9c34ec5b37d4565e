"""Alertmanager's webhook: one incident per alert fingerprint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

DOOR = "/api/v1/alerts/alertmanager"
SAMPLES = Path(__file__).parents[3] / "shared" / "reference" / "samples"


def notification(
    fingerprint: str = "f1", status: str = "firing", starts: str = "2026-11-29T15:24:18.389Z", **labels: str
) -> dict[str, Any]:
    alert = {
        "status": status,
        "labels": {"alertname": "TrainStepStalled", **labels},
        "annotations": {"summary": "stalled"},
        "startsAt": starts,
        "endsAt": "0001-01-01T00:00:00Z" if status == "firing" else "2026-11-29T15:24:26.389Z",
        "generatorURL": "",
        "fingerprint": fingerprint,
    }
    return {
        "version": "4",
        "groupKey": "{}",
        "status": status,
        "receiver": "hook",
        "truncatedAlerts": 0,
        "alerts": [alert],
        "novel": 1,
    }


def incidents(client: TestClient, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/v1/incidents", params=query).json()["items"]
    return found


def test_the_same_alert_again_counts_up_and_resolved_closes(client: TestClient) -> None:
    for _ in range(3):
        assert client.post(DOOR, json=notification(job_id="42", rank="3")).status_code == 200
    (incident,) = incidents(client)
    assert (incident["job"], incident["rank"], incident["occurrences"], incident["state"]) == ("42", "3", 3, "detected")
    client.post(DOOR, json=notification(status="resolved", job_id="42", rank="3"))
    (incident,) = incidents(client)
    assert incident["state"] == "resolved"
    story = client.get(f"/api/v1/incidents/{incident['id']}").json()["timeline"]
    assert [entry["kind"] for entry in story] == ["detected", "resolved", "state"]
    assert "resolved" in story[1]["text"]


def test_the_scrape_label_job_names_no_job(client: TestClient) -> None:
    client.post(DOOR, json=notification(job="train", instance="n7:9400"))
    (incident,) = incidents(client)
    assert (incident["job"], incident["node"]) == (None, "n7")


def test_an_alert_that_flaps_reopens_its_incident(client: TestClient) -> None:
    client.post(DOOR, json=notification())
    client.post(DOOR, json=notification(status="resolved"))
    client.post(DOOR, json=notification(starts="2026-11-29T15:30:00Z"))
    (incident,) = incidents(client)
    assert (incident["state"], incident["occurrences"]) == ("detected", 2)


def test_an_alert_that_fires_again_with_the_same_start_reopens_its_incident(client: TestClient) -> None:
    for status in ("firing", "resolved", "firing"):
        client.post(DOOR, json=notification(status=status))
    (incident,) = incidents(client)
    assert (incident["state"], incident["occurrences"]) == ("detected", 2)


def test_a_firing_that_comes_after_its_own_end_stays_closed_unless_it_fires_on(client: TestClient) -> None:
    client.post(DOOR, json=notification(status="resolved"))
    client.post(DOOR, json=notification())
    (incident,) = incidents(client)
    assert (incident["state"], incident["occurrences"]) == ("resolved", 1)
    assert "came late" in client.get(f"/api/v1/incidents/{incident['id']}").json()["timeline"][-1]["text"]
    client.post(DOOR, json=notification())
    assert [each["state"] for each in incidents(client)] == ["detected"]


def test_the_end_of_an_earlier_firing_does_not_close_what_fires_now(client: TestClient) -> None:
    client.post(DOOR, json=notification(starts="2026-11-29T15:30:00Z"))
    client.post(DOOR, json=notification(status="resolved"))
    assert [incident["state"] for incident in incidents(client)] == ["detected"]
    late_end = notification(status="resolved", starts="2026-11-29T15:20:00Z")
    late_end["alerts"][0]["endsAt"] = "2026-11-29T15:31:00Z"
    # Of two Prometheus that watch the same, Alertmanager keeps the earlier start.
    client.post(DOOR, json=late_end)
    assert [incident["state"] for incident in incidents(client)] == ["resolved"]


def test_resolved_without_firing_is_kept_as_closed(client: TestClient) -> None:
    client.post(DOOR, json=notification(status="resolved"))
    (incident,) = incidents(client)
    assert incident["state"] == "resolved"


def test_resolved_does_not_close_what_a_job_failure_is_attached_to(client: TestClient) -> None:
    from service.incidents import FailureReport, open_or_update_incident

    client.post(DOOR, json=notification(job_id="42"))
    service = client.app.state.pitstop  # type: ignore[attr-defined]
    with service.store.writing() as session:
        reported = open_or_update_incident(session, FailureReport("42", 0, 1, "k"), service.clock())
    assert not reported.opened
    client.post(DOOR, json=notification(status="resolved", job_id="42"))
    (incident,) = incidents(client)
    assert (incident["kind"], incident["state"]) == ("failure", "detected")
    kinds = [entry["kind"] for entry in client.get(f"/api/v1/incidents/{incident['id']}").json()["timeline"]]
    assert kinds == ["detected", "joined", "resolved"]


def test_an_alert_joins_the_open_failure_of_its_job_and_says_why(client: TestClient) -> None:
    from service.incidents import FailureReport, open_or_update_incident

    service = client.app.state.pitstop  # type: ignore[attr-defined]
    with service.store.writing() as session:
        open_or_update_incident(session, FailureReport("42", 0, 1, "k"), service.clock())
    client.post(DOOR, json=notification(job_id="42"))
    (incident,) = incidents(client)
    document = client.get(f"/api/v1/incidents/{incident['id']}").json()
    assert document["alerts"]["total"] == 1
    assert "job 42 has an open failure" in document["timeline"][-1]["text"]


def test_an_alert_without_labels_or_annotations_is_an_incident_of_its_own(client: TestClient) -> None:
    bare = notification()
    bare["alerts"][0] |= {"labels": None, "annotations": None}
    del bare["groupKey"], bare["receiver"]
    assert client.post(DOOR, json=bare).json()["firing"] == 1
    (incident,) = incidents(client)
    assert (incident["job"], incident["node"], incident["state"]) == (None, None, "detected")


def test_an_alert_that_is_resolved_before_it_was_heard_of_calls_nobody(client: TestClient) -> None:
    assert client.post(DOOR, json=notification(status="resolved", job_id="42")).json()["resolved"] == 1
    assert incidents(client, open=True) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 10_000,
        json.dumps({"version": "3", "alerts": []}).encode(),
        json.dumps({"version": "4"}).encode(),
        json.dumps(notification() | {"alerts": [{"status": "firing"}]}).encode(),
        json.dumps(notification(starts="yesterday")).encode(),
    ],
)
def test_a_malformed_notification_gets_one_error_and_stores_nothing(client: TestClient, body: bytes) -> None:
    answer = client.post(DOOR, content=body)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("not an Alertmanager webhook")
    assert incidents(client) == []


def test_one_bad_alert_among_good_ones_stores_none_of_them(client: TestClient) -> None:
    both = notification()
    both["alerts"].append({"status": "on fire"})
    assert client.post(DOOR, json=both).status_code == 400
    assert incidents(client) == []


def test_what_a_real_alertmanager_sent_makes_two_incidents(client: TestClient) -> None:
    if not SAMPLES.is_dir():
        pytest.skip("../shared/reference/samples is not here")
    bodies = {name: (SAMPLES / f"alertmanager_{name}.json").read_bytes() for name in ("firing", "direct", "resolved")}
    for name in ("firing", "direct"):
        assert client.post(DOOR, content=bodies[name]).status_code == 200
    assert {incident["job"] for incident in incidents(client)} == {"42", "7"}
    client.post(DOOR, content=bodies["direct"])
    client.post(DOOR, content=bodies["resolved"])
    found = {incident["job"]: incident for incident in incidents(client)}
    assert len(found) == 2
    assert (found["7"]["occurrences"], found["7"]["state"]) == (2, "detected")
    assert (found["42"]["occurrences"], found["42"]["state"]) == (1, "resolved")


def test_the_same_fault_named_six_ways_is_one_incident_that_says_why(client: TestClient) -> None:
    gpu = {"uuid": "GPU-4d2a", "serial": "1650021", "pci": "0000:b3:00.0", "index": 3}
    lease = {"boot_id": "b", "agent_id": "a", "aliases": ["n7.cluster.example", "10.0.0.7", "k8s-7"], "clock": 1.0, "gpus": [gpu]}
    assert client.post("/api/v1/nodes/n7/lease", json=lease).status_code == 200
    named: list[dict[str, str]] = [
        {"node": "n7", "gpu": "3"},
        {"instance": "n7.cluster.example:9400", "UUID": "GPU-4d2a"},
        {"instance": "10.0.0.7:9400", "gpu": "0000:b3:00.0"},
        {"Hostname": "N7", "gpu_serial": "1650021"},
        {"k8s_node_name": "k8s-7", "gpu": "00000000:B3:00.0"},
        {"hostname": "n7.cluster.example", "gpu_uuid": "gpu-4D2A"},
    ]
    for number, labels in enumerate(named):
        assert client.post(DOOR, json=notification(fingerprint=f"f{number}", **labels)).status_code == 200
    (incident,) = incidents(client)
    assert (incident["node"], incident["gpu"], incident["occurrences"]) == ("n7", "1650021", 6)
    story = client.get(f"/api/v1/incidents/{incident['id']}").json()["timeline"]
    assert sum("TrainStepStalled about the same GPU" in entry["text"] for entry in story) == 5


def test_alerts_about_nodes_that_nobody_knows_stay_apart(client: TestClient) -> None:
    for number, node in enumerate(("n7", "n7.cluster.example")):
        client.post(DOOR, json=notification(fingerprint=f"f{number}", node=node))
    assert len(incidents(client)) == 2
