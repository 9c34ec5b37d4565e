"""What people say about incidents holds for later ones: joined, divided, silenced, corrected."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from rules.diagnosis import Diagnosis, Evidence, FaultDomain
from rules.signal import Role, Trust
from rules.taxonomy import load_taxonomy
from service.implications import HALF_LIFE_SECONDS, lemon_score, lemons
from service.incidents import FailureReport, apply_diagnosis, open_or_update_incident
from service.silences import matches
from service.store import Store
from service.store.access import AuditEntry
from service.store.incidents import Incident
from service.timeline import IncidentState, move
from tests.service.test_alerts import DOOR, incidents, notification

Fail = Callable[..., int]


@pytest.fixture
def fail(client: TestClient) -> Fail:
    """Report and diagnose a failure; returns its incident."""
    service = client.app.state.pitstop  # type: ignore[attr-defined]

    def report(reason: str = "unknown", generation: int = 1, job: str = "train", text: str = "boom", **domain: str) -> int:
        evidence = (Evidence(Role.ROOT, text, trust=Trust.NODE),)
        diagnosis = Diagnosis.of(
            load_taxonomy()[reason], text, confidence=0.9, evidence=evidence, fault_domain=FaultDomain(**domain)
        )
        with service.store.writing() as session:
            reported = open_or_update_incident(session, FailureReport(job, 0, generation, f"k{generation}"), service.clock())
            return apply_diagnosis(session, reported.incident, diagnosis, service.clock()).id

    return report


def close(client: TestClient, number: int) -> None:
    assert client.post(f"/api/v1/incidents/{number}/resolve").status_code == 200


def story(client: TestClient, number: int) -> str:
    return " | ".join(entry["text"] for entry in client.get(f"/api/v1/incidents/{number}").json()["timeline"])


def test_what_was_merged_by_hand_is_joined_the_next_time_and_says_by_whom(client: TestClient, fail: Fail) -> None:
    one, other = fail(text="first symptom"), fail(generation=2, text="second symptom")
    answer = client.post(f"/api/v1/incidents/{other}/merge", json={"into": one, "comment": "same cable"})
    assert answer.status_code == 200 and answer.json()["occurrences"] == 2
    assert client.get(f"/api/v1/incidents/{other}").json()["merged_into"] == str(one)
    assert "by hand: same cable" in story(client, one)
    close(client, one)
    again = fail(generation=3, text="first symptom")
    assert fail(generation=4, text="second symptom") == again != one
    assert "local put these two together before" in story(client, again)


def test_merging_an_incident_with_itself_or_a_merged_one_is_refused(client: TestClient, fail: Fail) -> None:
    one, other = fail(text="a"), fail(generation=2, text="b")
    assert client.post(f"/api/v1/incidents/{one}/merge", json={"into": one}).status_code == 409
    assert client.post(f"/api/v1/incidents/{one}/merge", json={"into": 999}).status_code == 404
    client.post(f"/api/v1/incidents/{one}/merge", json={"into": other})
    assert client.post(f"/api/v1/incidents/{one}/merge", json={"into": other}).status_code == 409


def test_failures_divided_by_hand_stay_apart(client: TestClient, fail: Fail) -> None:
    number = fail()
    assert fail(generation=2) == number
    answer = client.post(f"/api/v1/incidents/{number}/split", json={"failures": [[0, 2]], "comment": "another bug"})
    assert answer.status_code == 201
    own = int(answer.json()["id"])
    assert own != number
    assert len(client.get(f"/api/v1/incidents/{own}").json()["failures"]) == 1
    assert client.get(f"/api/v1/incidents/{number}").json()["occurrences"] == 1
    assert fail(generation=3) not in (number, own)


def test_an_alert_divided_from_a_failure_is_not_joined_to_the_next_one(client: TestClient, fail: Fail) -> None:
    number = fail()
    client.post(DOOR, json=notification(fingerprint="f1", job_id="train"))
    assert client.get(f"/api/v1/incidents/{number}").json()["alerts"]["total"] == 1
    answer = client.post(f"/api/v1/incidents/{number}/split", json={"alerts": ["f1"]})
    assert answer.status_code == 201
    close(client, int(answer.json()["id"]))
    close(client, number)
    later = fail(generation=5, text="other")
    client.post(DOOR, json=notification(fingerprint="f1", job_id="train", starts="2027-01-01T00:00:00Z"))
    assert client.get(f"/api/v1/incidents/{later}").json()["alerts"]["total"] == 0


def test_dividing_nothing_or_everything_is_refused(client: TestClient, fail: Fail) -> None:
    number = fail()
    assert client.post(f"/api/v1/incidents/{number}/split", json={}).status_code == 422
    assert client.post(f"/api/v1/incidents/{number}/split", json={"failures": [[0, 1]]}).status_code == 422


def test_an_operators_verdict_replaces_the_reason_and_is_audited(client: TestClient, fail: Fail) -> None:
    number = fail()
    answer = client.post(
        f"/api/v1/incidents/{number}/feedback", json={"right": False, "reason": "gpu_fallen_off_bus", "comment": "saw it"}
    )
    document = answer.json()
    assert (document["reason"], document["source"], document["severity"]) == ("gpu_fallen_off_bus", "operator", "SEV1")
    assert "it is gpu_fallen_off_bus and not unknown: saw it" in story(client, number)
    assert client.post(f"/api/v1/incidents/{number}/feedback", json={"right": False, "reason": "bad luck"}).status_code == 422
    with client.app.state.pitstop.store.reading() as session:  # type: ignore[attr-defined]
        assert "incident.feedback" in session.scalars(select(AuditEntry.act)).all()


def silence(**fields: Any) -> dict[str, Any]:
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    return {
        "matchers": [{"name": "alertname", "value": "Train.*", "isRegex": True}],
        "endsAt": ends,
        "comment": "planned",
    } | fields


def test_a_silence_holds_for_open_and_new_incidents_until_it_ends(client: TestClient) -> None:
    client.post(DOOR, json=notification(fingerprint="f1"))
    number = client.post("/api/v1/silences", json=silence()).json()["id"]
    client.post(DOOR, json=notification(fingerprint="f2"))
    assert len(incidents(client, silenced=True)) == 2 and incidents(client, silenced=False) == []
    assert client.delete(f"/api/v1/silences/{number}").status_code == 200
    assert len(incidents(client, silenced=False)) == 2
    assert client.get("/api/v1/silences").json()["total"] == 0
    assert client.get("/api/v1/silences", params={"ended": True}).json()["items"][0]["createdBy"] == "local"


@pytest.mark.parametrize(
    "fields",
    [
        {"matchers": []},
        {"comment": ""},
        {"endsAt": "2020-01-01T00:00:00Z"},
        {"endsAt": "9999-01-01T00:00:00Z"},
        {"matchers": [{"name": "a", "value": "(", "isRegex": True}]},
    ],
)
def test_a_silence_without_matcher_comment_or_sound_end_is_refused(client: TestClient, fields: dict[str, Any]) -> None:
    assert client.post("/api/v1/silences", json=silence(**fields)).status_code == 422


def test_matchers_compare_as_alertmanagers_do() -> None:
    labels = {"a": "xyz"}
    assert matches([{"name": "a", "value": "x.*", "isRegex": True, "isEqual": True}], labels)
    assert not matches([{"name": "a", "value": "x", "isRegex": True, "isEqual": True}], labels)
    assert matches([{"name": "b", "value": "", "isRegex": False, "isEqual": True}], labels)
    assert not matches([{"name": "a", "value": "xyz", "isRegex": False, "isEqual": False}], labels)


def test_suspicion_grows_with_independent_jobs_and_fades() -> None:
    once = lemon_score([("a", 0.5, 0.0)], 0.0)
    assert lemon_score([("a", 0.5, 0.0)] * 20, 0.0) == 0.7
    assert lemon_score([("a", 0.5, 0.0), ("b", 0.5, 0.0), ("c", 0.5, 0.0)], 0.0) > 0.8 > once
    assert lemon_score([("a", 0.5, 0.0)], HALF_LIFE_SECONDS) == pytest.approx(once / 2, abs=0.01)
    assert lemon_score([], 0.0) == 0.0


def test_a_node_that_fails_several_jobs_leads_the_suspects(client: TestClient, fail: Fail) -> None:
    for job in ("a", "b", "c"):
        fail("gpu_fallen_off_bus", job=job, node="n7", gpu="GPU-1")
    fail("gpu_fallen_off_bus", job="d", node="n8")
    items = client.get("/api/v1/nodes/suspects", params={"kind": "node"}).json()["items"]
    assert [(item["name"], item["jobs"]) for item in items] == [("n7", 3), ("n8", 1)]


def test_a_script_error_points_at_no_node(store: Store) -> None:
    reason = next(reason for reason in load_taxonomy().reasons.values() if reason.category.value == "script")
    diagnosis = Diagnosis.of(reason, "x", confidence=0.9, fault_domain=FaultDomain(node="n7"))
    with store.writing() as session:
        reported = open_or_update_incident(session, FailureReport("train", 0, 1, "k"), 1.0)
        apply_diagnosis(session, reported.incident, diagnosis, 1.0)
        assert lemons(session, 1.0) == []


def test_reopening_an_incident_keeps_one_open_key_per_cause(client: TestClient, fail: Fail) -> None:
    number = fail()
    service = client.app.state.pitstop  # type: ignore[attr-defined]
    with service.store.writing() as session:
        incident = session.get_one(Incident, number)
        move(session, incident, IncidentState.VERIFIED, "steps advance", at=service.clock())
    assert fail(generation=2) == number
    assert client.get(f"/api/v1/incidents/{number}").json()["state"] == "diagnosing"
