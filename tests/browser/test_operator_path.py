"""An operator at 3 a.m., without a mouse: from the sign-in to the freeze, each step in the audit trail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from service.access import Role, create_token
from service.store import Store
from tests.browser.cluster import NODES, PRETRAIN, Night, lose_a_gpu, open_night
from tests.service.service_process import ServiceProcess

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

# Playwright's own waiting, in milliseconds: generous, the machine may be busy.
PATIENCE = 60_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One that lets nobody in without a token. Nobody renews the leases of its nodes: they hold for the whole night."""
    folder = tmp_path_factory.mktemp("signed-in")
    environment = {"PITSTOP_REQUIRE_TOKEN": "true", "PITSTOP_LEASE_SECONDS": "3600"}
    with ServiceProcess(folder / "data", environment=environment) as service:
        yield service


@pytest.fixture(scope="module")
def night(service: ServiceProcess) -> Night:
    """One incident that waits for approval: the agent of the node itself says that its GPU is gone."""
    night = open_night(service)
    for index, node in enumerate(NODES):
        night.lease(node, index)
    night.call("PUT", "breaker", {"least": 2, "why": "a small cluster"})
    night.call("PUT", "modes", {"modes": {"isolate": "approve"}, "why": "operators look at each isolation"})
    store = Store(f"sqlite:///{service.data_dir / 'pitstop.sqlite'}")
    with store.writing() as session:
        night.tokens[NODES[2]] = create_token(session, "agent-a03", Role.NODE, binding=(NODES[2],), now=0.0, by="test")
        night.tokens["olga"] = create_token(session, "olga", Role.OPERATOR, now=0.0, by="test")
    store.close()
    lose_a_gpu(night)
    night.until(PRETRAIN, "waiting_for_approval")
    return night


@pytest.fixture
def page(chromium: Browser, service: ServiceProcess, night: Night) -> Iterator[Page]:
    context = chromium.new_context(base_url=service.url)
    context.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    yield context.new_page()
    context.close()


def audited(night: Night, act: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = night.call("GET", f"audit?act={act}&limit=10")["items"]
    return [entry for entry in found if entry["actor"] == "olga"]


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until the focus is on `selector`."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if page.evaluate("wanted => document.activeElement?.matches(wanted) ?? false", selector):
            return
    raise AssertionError(f"Tab does not reach {selector}")


def test_an_operator_does_everything_by_keyboard_and_every_step_is_audited(page: Page, night: Night) -> None:
    number = night.incidents[PRETRAIN]
    press, write, told = page.keyboard.press, page.keyboard.type, page.locator("[data-told]")

    # Sign in; the page that was asked for comes after it.
    page.goto("/?severity=SEV1")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    write(night.tokens["olga"])
    press("Enter")
    page.wait_for_url("**/?severity=SEV1")
    assert audited(night, "session.begin")

    # Filter.
    press("/")
    write("llama")
    press("Enter")
    page.wait_for_url("**contains=llama**")
    expect(page.locator("tbody tr")).to_have_count(1)

    # Open, and read the evidence among its neighbours.
    press("j")
    press("Enter")
    page.wait_for_url(f"**/incidents/{number}")
    expect(page.locator("tr.root code").first).to_contain_text("fallen off the bus")
    tab_to(page, f"a[href='/incidents/{number}/evidence']")
    press("Enter")
    page.wait_for_url("**/evidence")
    expect(page.locator("mark").first).to_contain_text("fallen off the bus")
    page.go_back()
    page.wait_for_url(f"**/incidents/{number}")

    # Approve.
    press("a")
    expect(told).to_contain_text("approved")
    assert audited(night, "action.approve")[0]["target"] == str(number)

    # Say that the verdict is right.
    tab_to(page, "[data-act$='/feedback'] input[name=comment]")
    write("seen on the console")
    press("Enter")
    expect(told).to_contain_text("noted")
    assert "seen on the console" in audited(night, "incident.feedback")[0]["reason"]
    press("Escape")

    # Silence it.
    press("s")
    write("the vendor is on the way")
    press("Enter")
    expect(told).to_contain_text("silenced")
    assert audited(night, "silence.create")[0]["reason"] == "the vendor is on the way"

    # Freeze, and unfreeze.
    press("Escape")
    page.goto("/settings")
    tab_to(page, "[data-act='/api/v1/freeze'] input[name=why]")
    write("storage work")
    press("Enter")
    expect(page.locator("main b.sev1")).to_have_text("Frozen")
    assert night.call("GET", "freeze")["why"] == "by olga: storage work"
    expect(page.locator(":focus")).to_have_text("Let actions go on")
    press("Enter")
    expect(page.locator("main b.sev1")).to_have_count(0)
    assert night.call("GET", "freeze")["frozen"] is False
    assert len(audited(night, "freeze")) + len(audited(night, "unfreeze")) >= 2

    # Sign out.
    tab_to(page, "[action='/logout'] button")
    press("Enter")
    page.wait_for_url("**/login")
    assert audited(night, "session.end")


def test_silences_and_maintenance_are_made_and_ended_on_their_page(page: Page, night: Night) -> None:
    page.context.set_extra_http_headers({"Authorization": f"Bearer {night.tokens['olga']}"})
    page.goto("/silences")
    silence = page.locator("form[data-act='/api/v1/silences']")
    silence.locator("textarea").fill("reason=gpu_thermal_violation\nnode=~gpu-a0[12]")
    silence.locator("[name=comment]").fill("fans are changed")
    silence.get_by_role("button").press("Enter")
    row = page.locator("tr", has_text="fans are changed")
    expect(row).to_contain_text("node=~gpu-a0[12]")
    expect(row).to_contain_text("olga")
    made = night.call("GET", "silences")["items"]
    assert [matcher["isRegex"] for item in made if item["comment"] == "fans are changed" for matcher in item["matchers"]] == [
        False,
        True,
    ]
    row.get_by_role("button").press("Enter")
    expect(page.locator("h2", has_text="Ended last")).to_be_visible()

    silence.locator("textarea").fill("no matcher")
    silence.locator("[name=comment]").fill("?")
    silence.get_by_role("button").press("Enter")
    expect(silence.locator(".said")).to_contain_text("not a matcher: no matcher")
    silence.locator("textarea").fill("")
    silence.locator("[name=comment]").fill("")

    work = page.locator("form[data-act='/api/v1/maintenance']")
    work.locator("[name=nodes]").fill("gpu-a05, gpu-a06")
    work.locator("[name=lasts]").fill("2")
    work.locator("[name=why]").fill("firmware")
    work.get_by_role("button").press("Enter")
    row = page.locator("tr", has_text="firmware")
    expect(row).to_contain_text("gpu-a05, gpu-a06")
    (window,) = night.call("GET", "maintenance")["items"]
    assert window["end"] - window["start"] == pytest.approx(7200, abs=1)
    row.get_by_role("button").press("Enter")
    expect(page.get_by_text("No work is planned")).to_be_visible()
    assert audited(night, "maintenance.plan") and audited(night, "maintenance.cancel") and audited(night, "silence.end")
