"""The pages: what they show, and that nothing quoted can act in them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape

from fastapi.testclient import TestClient

from rules.diagnosis import Diagnosis, Evidence
from rules.signal import Role
from rules.taxonomy import load_taxonomy
from service.app import create_app
from service.incidents import FailureReport, apply_diagnosis, open_or_update_incident
from service.ingest.matching import MatcherPool
from service.settings import Settings

HOSTILE = "<script>alert(1)</script> \" onload='x'"


def failed_job(client: TestClient, job: str = "train") -> int:
    service = client.app.state.pitstop  # type: ignore[attr-defined]
    reason = load_taxonomy()["unknown"]
    diagnosis = Diagnosis.of(reason, HOSTILE, confidence=0.3, evidence=(Evidence(Role.ROOT, HOSTILE, HOSTILE, 7),))
    with service.store.writing() as session:
        incident = open_or_update_incident(session, FailureReport(job, 0, 1, "k"), service.clock()).incident
        return apply_diagnosis(session, incident, diagnosis, service.clock()).id


def test_an_empty_overview_says_why_it_is_empty(client: TestClient) -> None:
    assert "No source has sent a line yet" in client.get("/").text
    client.post("/api/v1/logs", content=b'{"line": "hello"}')
    assert "1 source has sent something" in client.get("/").text


def test_the_overview_lists_open_incidents_and_filters_by_severity(client: TestClient) -> None:
    number = failed_job(client)
    assert f'href="/incidents/{number}"' in client.get("/").text
    assert f'href="/incidents/{number}"' not in client.get("/?severity=SEV1").text
    client.post(f"/api/v1/incidents/{number}/resolve")
    assert f'href="/incidents/{number}"' not in client.get("/").text
    assert f'href="/incidents/{number}"' in client.get("/?all=1").text


def test_quoted_lines_are_escaped_and_only_our_own_script_may_run(client: TestClient) -> None:
    number = failed_job(client)
    for path in ("/", f"/incidents/{number}"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in answer.text
        assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_the_page_of_an_incident_tells_its_story(client: TestClient) -> None:
    text = client.get(f"/incidents/{failed_job(client)}").text
    assert "diagnosed" in text and "detected" in text and "Evidence" in text
    assert client.get("/incidents/999").status_code == 404


def form_of(text: str, act: str) -> str:
    """The form that posts to `act`; fails where the page has none."""
    found = re.search(rf'<form[^>]*data-act="{re.escape(act)}".*?</form>', text, re.DOTALL)
    assert found is not None, act
    return found.group()


def test_the_page_takes_a_silence_for_what_it_shows(client: TestClient) -> None:
    number = failed_job(client, "tra\"in's <b>")
    form = form_of(client.get(f"/incidents/{number}").text, "/api/v1/silences")
    found = re.search(r'name="matchers" value="([^"]*)"', form)
    assert found is not None and "<b>" not in form
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    body = {"matchers": json.loads(unescape(found.group(1))), "endsAt": until, "comment": "known"}
    assert client.post("/api/v1/silences", json=body).status_code == 201
    assert "Silenced until" in client.get(f"/incidents/{number}").text


def test_the_page_offers_every_reason_as_the_true_cause_and_shows_what_was_said(client: TestClient) -> None:
    number = failed_job(client)
    act = f"/api/v1/incidents/{number}/feedback"
    offered = re.findall(r"<option>([a-z_0-9]+)</option>", form_of(client.get(f"/incidents/{number}").text, act))
    assert "gpu_fallen_off_bus" in offered and "none" not in offered
    said = {"right": False, "reason": "gpu_fallen_off_bus", "comment": "seen on the console"}
    assert client.post(act, json=said).status_code == 200
    text = client.get(f"/incidents/{number}").text
    assert "it is gpu_fallen_off_bus and not unknown: seen on the console" in text and "operator" in text


def test_an_incident_that_was_joined_leads_to_the_other(client: TestClient) -> None:
    one, other = failed_job(client, "a"), failed_job(client, "b")
    act = f"/api/v1/incidents/{one}/merge"
    assert 'name="into"' in form_of(client.get(f"/incidents/{one}").text, act)
    assert client.post(act, json={"into": str(other), "comment": "same rack"}).status_code == 200
    text = client.get(f"/incidents/{one}").text
    assert f'href="/incidents/{other}"' in text and act not in text


def test_a_browser_elsewhere_signs_in_with_its_token(settings: Settings, pool: MatcherPool) -> None:
    application = create_app(settings, shared_pool=pool)
    with TestClient(application, base_url="http://pitstop.example", client=("10.0.0.7", 1), follow_redirects=False) as browser:
        page = {"Accept": "text/html"}
        assert browser.get("/", headers=page).headers["location"] == "/login"
        assert browser.get("/login").status_code == 200
        assert browser.post("/login", data={"token": "wrong"}).status_code == 403
        token = (settings.data_dir / "admin.token").read_text()
        answer = browser.post("/login", data={"token": token})
        assert answer.status_code == 303
        assert "HttpOnly" in answer.headers["set-cookie"] and "SameSite=strict" in answer.headers["set-cookie"]
        assert browser.get("/", headers=page).status_code == 200
