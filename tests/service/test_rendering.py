"""What pages make of text from outside, and where they lead."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from markupsafe import Markup

from service.app import create_app
from service.dashboard.pages import place_in
from service.dashboard.rendering import CLIPPED, clipped, visible
from service.ingest.matching import MatcherPool
from service.settings import Settings


def test_no_character_is_hidden_and_none_changes_what_stands_around_it() -> None:
    assert visible("\x1b[31mred\x07\x7f") == "\\x1b[31mred\\x07\\x7f"
    assert visible("a\u202egnp.exe\u2066b\ufeff") == "a[U+202E]gnp.exe[U+2066]b[U+FEFF]"
    assert visible("tab\tand\nline, größer, 日本語") == "tab\tand\nline, größer, 日本語"
    assert visible(Markup("\x1b")) == "\x1b" and visible(7) == 7


def test_a_long_line_says_how_much_of_it_is_not_shown() -> None:
    assert clipped("x" * CLIPPED) == "x" * CLIPPED
    assert clipped("x" * 1_000_000).endswith(" [... 998,000 characters more]")


@pytest.mark.parametrize(
    "address", ["https://elsewhere.example/", "//elsewhere.example", "/\\elsewhere.example", "", "incidents", "/a\nb"]
)
def test_a_sign_in_leads_nowhere_else(address: str) -> None:
    assert place_in(address) == "/"


def test_a_sign_in_leads_to_the_page_that_was_asked_for_and_a_sign_out_forgets_the_token(
    settings: Settings, pool: MatcherPool
) -> None:
    application = create_app(settings, shared_pool=pool)
    with TestClient(application, base_url="http://pitstop.example", client=("10.0.0.7", 1), follow_redirects=False) as browser:
        asked = browser.get("/jobs?state=running", headers={"Accept": "text/html"}).headers["location"]
        assert 'name="next" value="/jobs?state=running"' in browser.get(asked).text
        token = (settings.data_dir / "admin.token").read_text()
        answer = browser.post("/login", data={"token": token, "next": "/jobs?state=running"})
        assert answer.headers["location"] == "/jobs?state=running"
        acts = [entry["act"] for entry in browser.get("/api/v1/audit").json()["items"]]
        assert acts[0] == "session.begin"
        assert browser.post("/logout").headers["location"] == "/login"
        assert browser.get("/", headers={"Accept": "text/html"}).status_code == 303


def test_a_browser_gets_a_problem_as_a_page_and_a_program_as_a_document(client: TestClient) -> None:
    shown = client.get("/jobs/nobody", headers={"Accept": "text/html"})
    assert shown.status_code == 404 and "<h1>Not Found</h1>" in shown.text and "is registered" in shown.text
    for path, accept in (("/jobs/nobody", "*/*"), ("/api/v1/jobs/nobody", "text/html")):
        assert client.get(path, headers={"Accept": accept}).json()["status"] == 404


def test_the_audit_trail_is_read_by_act_and_target(client: TestClient, admin: dict[str, str]) -> None:
    client.headers.update(admin)
    client.post("/api/v1/freeze", json={"on": True, "why": "storage work"})
    client.post("/api/v1/freeze", json={"on": False})
    found = client.get("/api/v1/audit?act=freeze").json()
    assert [(entry["actor"], entry["target"], entry["reason"]) for entry in found["items"]] == [
        ("admin", "pitstop", "storage work")
    ]
    assert client.get("/api/v1/audit?target=pitstop").json()["total"] == 2
