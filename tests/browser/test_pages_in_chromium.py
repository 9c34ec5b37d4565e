"""Every page in a real browser, full: nothing overflows, fails, acts or stays hidden, and everybody can read it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from fastapi.routing import APIRoute
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response

from service import dashboard
from tests.browser.cluster import FINETUNE, HOSTILE_JOB, NODES, ODD, PRETRAIN, PROBED, Night, quoted
from tests.browser.conftest import ROOT, sign_in
from tests.service.service_process import ServiceProcess

pytestmark = [pytest.mark.timeout(600)]

PICTURES = ROOT / "build" / "pictures"
WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
TALLEST = 4000
# A drawing, which is no page.
WITHOUT = {"/plan/schedule.svg"}


def addresses(night: Night) -> dict[str, str]:
    """A name for each picture, and the address of the page; every route of the dashboard is among them."""
    number = night.incidents
    return {
        "login": "/login",
        "overview": "/",
        "overview-filtered": "/?severity=SEV1&contains=llama",
        "overview-nothing": "/?severity=SEV3",
        "incident-gpu": f"/incidents/{number[PRETRAIN]}",
        "incident-approval": f"/incidents/{number[PROBED]}",
        "incident-owner": f"/incidents/{number[FINETUNE]}",
        "incident-unknown": f"/incidents/{number[ODD]}",
        "incident-hostile": f"/incidents/{number[HOSTILE_JOB]}",
        "evidence": f"/incidents/{number[PRETRAIN]}/evidence",
        "evidence-hostile": f"/incidents/{number[HOSTILE_JOB]}/evidence",
        "jobs": "/jobs",
        "job": f"/jobs/{PRETRAIN}",
        "job-hostile": f"/jobs/{quoted(HOSTILE_JOB)}",
        "nodes": "/nodes",
        "node": f"/nodes/{NODES[2]}",
        "node-out": f"/nodes/{NODES[7]}",
        "plan": "/plan",
        "plan-what-if": f"/plan?what_if=node+{NODES[4]}+lost",
        "trials": "/trials",
        "trial": "/trials/eval-70b-step-18000",
        "rules": "/rules?contains=xid",
        "rule": "/rules/PS-XID-079",
        "learning": "/learning",
        "candidate": f"/learning/{night.candidate}",
        "collectors": "/collectors",
        "actions": "/actions",
        "silences": "/silences",
        "report": "/report",
        "settings": "/settings",
        "problem": "/jobs/nobody",
    }


@dataclass
class Watched:
    """A page, and all that it complained about."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def failed(self, request: Request) -> None:
        # What a page that is left, or a worker that is there already, no longer needs.
        if request.failure != "net::ERR_ABORTED":
            self.complaints.append(f"{request.url}: {request.failure}")

    def answered(self, response: Response) -> None:
        if response.status >= 400:
            self.complaints.append(f"{response.url}: {response.status}")

    def open(self, address: str) -> None:
        self.complaints.clear()
        self.page.goto(address)
        self.page.wait_for_load_state("load")


@pytest.fixture(scope="module")
def watched(chromium: Browser, service: ServiceProcess, night: Night) -> Iterator[Watched]:
    # axe is put into the page by the test: only its own script would be refused otherwise.
    context = chromium.new_context(viewport=WIDE, base_url=service.url, bypass_csp=True)
    watched = Watched(context.new_page())
    watched.page.on("console", watched.heard)
    watched.page.on("requestfailed", watched.failed)
    watched.page.on("response", watched.answered)
    watched.page.on("dialog", lambda dialog: watched.complaints.append(f"a dialog: {dialog.message}"))
    sign_in(watched.page, service)
    yield watched
    context.close()


def flaws(watched: Watched, name: str, address: str, axe: str, themes: Sequence[str], pictures: Path | None = None) -> list[str]:
    """What is wrong with one page, wide and on a phone, in each theme; with `pictures`, how it looks goes there."""
    page = watched.page
    watched.open(address)
    if page.locator("[data-chart]").count():
        page.wait_for_selector("[data-chart] .main-svg", timeout=60_000)
    wrong = [text for text in watched.complaints if not (name == "problem" and "404" in text)]
    shown = page.locator("body").inner_text()
    wrong += [f"JSON is shown: {found[:80]}" for found in re.findall(r'\{"\w+":.*', shown)]
    wrong += [f"{found} is shown" for found in re.findall(r"(?<!\w)(?:None|undefined|NaN|\[object \w+|Lorem)(?!\w)", shown)]
    page.evaluate(f"{axe}; 0")
    for theme in themes:
        page.emulate_media(color_scheme=theme)
        for width, size in (("phone", PHONE), ("wide", WIDE)):
            page.set_viewport_size(size)
            broad = page.evaluate("document.documentElement.scrollWidth")
            if broad > size["width"]:
                wrong.append(f"{broad} pixels wide on a {width} of {size['width']}")
            if pictures is not None:
                tall = min(TALLEST, page.evaluate("document.documentElement.scrollHeight"))
                clip = {"x": 0, "y": 0, "width": size["width"], "height": tall}
                page.screenshot(path=pictures / f"{name}-{theme}-{width}.png", full_page=True, clip=clip)
        found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        grave = [item for item in found if item["impact"] in ("serious", "critical")]
        wrong += [f"{theme}: {item['impact']} {item['id']}: {item['nodes'][0]['html'][:160]}" for item in grave]
    return [f"{name}: {text}" for text in wrong]


@pytest.mark.acceptance
def test_no_page_overflows_fails_shows_json_or_keeps_anybody_out(watched: Watched, night: Night, axe: str) -> None:
    wrong = []
    for number, (name, address) in enumerate(addresses(night).items()):
        # Every second page in the dark; both themes of each are the soak's.
        wrong += flaws(watched, name, address, axe, [("light", "dark")[number % 2]])
    assert wrong == []


@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.timeout(1200)
def test_pictures_are_taken_of_every_page_light_and_dark_wide_and_on_a_phone(watched: Watched, night: Night, axe: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    wrong = []
    for name, address in addresses(night).items():
        wrong += flaws(watched, name, address, axe, ("light", "dark"), PICTURES)
    print(f"pictures of {len(addresses(night))} pages, light and dark, wide and on a phone: {PICTURES}")
    assert wrong == []


@pytest.mark.acceptance
def test_the_walk_reaches_every_page_that_there_is(night: Night) -> None:
    modules = [import_module(f"{dashboard.__name__}.{found.name}") for found in iter_modules(dashboard.__path__)]
    rooms = [module.router.routes for module in modules if hasattr(module, "router")]
    routes = [route for room in rooms for route in room if isinstance(route, APIRoute) and "GET" in route.methods]
    asked = [address.partition("?")[0] for address in addresses(night).values()]
    left = {route.path for route in routes if not any(route.path_regex.match(address) for address in asked)}
    assert left == WITHOUT and len(routes) > len(WITHOUT) + 15


@pytest.mark.acceptance
@pytest.mark.parametrize("name", ["overview", "incident-hostile", "evidence-hostile", "job-hostile", "jobs", "report"])
def test_a_hostile_line_is_text_and_nothing_else(watched: Watched, night: Night, name: str) -> None:
    watched.open(addresses(night)[name])
    page = watched.page
    assert watched.complaints == []
    assert page.title() != "owned"
    assert page.evaluate("document.querySelectorAll('main img, main script:not([src])').length") == 0
    shown = page.locator("main").inner_text()
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0e-\x1f]", shown)
    if name.endswith("hostile"):
        assert "<script>document.title='owned'</script>" in shown
    if name == "evidence-hostile":
        assert "\\x1b[31;1mred" in shown and "[U+202E]gnp.exe" in shown and "characters more]" in shown
        assert len(page.content()) < 200_000


@pytest.mark.acceptance
def test_a_page_hears_again_of_a_service_whose_proxy_answered_in_its_place(
    chromium: Browser, service: ServiceProcess, night: Night
) -> None:
    context = chromium.new_context(base_url=service.url)
    # The page listens by itself then, where its requests can be answered otherwise.
    context.add_init_script("delete window.SharedWorker")
    page = context.new_page()
    sign_in(page, service)
    page.wait_for_selector("[data-live]:text-is('live')")
    page.route("**/api/v1/events*", lambda route: route.fulfill(status=502, body="bad gateway"), times=1)
    page.reload()
    page.wait_for_selector("[data-live]:has-text('connection lost')")
    page.wait_for_selector("[data-live]:text-is('live')")
    page.wait_for_selector("main[data-refreshed]")
    context.close()
