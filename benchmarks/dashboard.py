"""The pages in real Chromium: first screen and report on many incidents, and twenty open pages during a storm of alerts."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
from playwright.sync_api import Browser, sync_playwright

from tests.browser.cluster import alerts
from tests.browser.conftest import FLAGS
from tests.service.many_incidents import fill_incidents
from tests.service.service_process import ServiceProcess

__all__ = ["run"]

SCALE = float(os.environ.get("SCALE", "1"))
INCIDENTS = int(100_000 * SCALE)
PAGES, ALERTS_PER_SECOND, BATCH = 20, 1_000, 100
STORM_SECONDS = max(5.0, 20 * SCALE)
LOOKS = 5


def look(browser: Browser, address: str, wanted: str) -> list[float]:
    """Seconds from asking for a page to when it can be used: shown, its scripts have run, and two frames are painted."""
    seconds = []
    for _ in range(LOOKS):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        begun = time.perf_counter()
        page.goto(address, wait_until="domcontentloaded")
        page.locator(wanted).first.wait_for()
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        seconds.append(time.perf_counter() - begun)
        context.close()
    return seconds


class Storm(threading.Thread):
    """Posts batches of alerts, `ALERTS_PER_SECOND` as far as the service takes them."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.over, self.taken, self.refused = url, threading.Event(), 0, 0

    def run(self) -> None:
        begun = time.monotonic()
        with httpx2.Client(base_url=self.url, timeout=60) as client:
            for number in itertools.count():
                if self.over.wait(max(0.0, begun + number * BATCH / ALERTS_PER_SECOND - time.monotonic())):
                    return
                labels = [{"instance": f"gpu-{index:03}:9400"} for index in range(BATCH)]
                answer = client.post("/api/v1/alerts/alertmanager", json=alerts(f"Storm{number % 5}", labels))
                self.taken += BATCH * (answer.status_code == 200)
                self.refused += BATCH * (answer.status_code != 200)


def latencies(url: str, seconds: float) -> list[float]:
    """Of a program that asks for the open incidents every 50 ms."""
    found, until = [], time.monotonic() + seconds
    with httpx2.Client(base_url=url, timeout=60) as client:
        while time.monotonic() < until:
            begun = time.perf_counter()
            assert client.get("/api/v1/incidents?limit=50").status_code == 200
            found.append(time.perf_counter() - begun)
            time.sleep(0.05)
    return found


def storm(url: str, browser: Browser) -> dict[str, Any]:
    """The API's latency under the storm without pages and with them, and how old the pages are at its end."""
    quiet = latencies(url, 5)
    alone = Storm(url)
    alone.start()
    without = latencies(url, STORM_SECONDS)
    alone.over.set()
    alone.join()
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    pages = [context.new_page() for _ in range(PAGES)]
    for page in pages:
        page.goto(url)
    watched = Storm(url)
    watched.start()
    beside = latencies(url, STORM_SECONDS)
    ages = [
        page.evaluate("(Date.now() - Number(document.querySelector('main').dataset.refreshed ?? 0)) / 1000") for page in pages
    ]
    live = sum(page.locator("[data-live]").inner_text() == "live" for page in pages)
    watched.over.set()
    watched.join()
    context.close()
    return {"quiet": quiet, "without": without, "beside": beside, "ages": ages, "live": live, "storms": (alone, watched)}


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def run() -> str:
    folder = Path(tempfile.mkdtemp())
    data = folder / "data"
    data.mkdir()
    try:
        fill_incidents(f"sqlite:///{data / 'pitstop.sqlite'}", INCIDENTS)
        with ServiceProcess(data) as service, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
            screens = {
                "first screen": look(browser, service.url, "tbody tr"),
                "all incidents": look(browser, f"{service.url}/?all=1", "tbody tr"),
                "one search": look(browser, f"{service.url}/?all=1&contains=gpu-007", "tbody tr"),
                "report, 7 days": look(browser, f"{service.url}/report", "[data-chart] .main-svg"),
                "report, 90 days": look(browser, f"{service.url}/report?days=90", "[data-chart] .main-svg"),
            }
            told = storm(service.url, browser)
            browser.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tempest = (
        f"A storm of {ALERTS_PER_SECOND:,} alerts a second for {STORM_SECONDS:.0f} s, {PAGES} open pages in one browser on the "
        "same machine; a program asks for the open incidents every 50 ms meanwhile."
    )
    refused = sum(one.refused for one in told["storms"])
    verdict = (
        f"Pages against no pages under the storm: median {median(told['beside']) / median(told['without']):.2f} times, p95 "
        f"{p95(told['beside']) / p95(told['without']):.2f} times. {told['live']} of {PAGES} pages were live; their content was "
        f"{median(told['ages']):.1f} s old (median), {max(told['ages']):.1f} s at most. {refused} alerts were refused."
    )
    rates = ["-", *(f"{one.taken / STORM_SECONDS:,.0f}" for one in told["storms"])]
    rows = zip(("no storm", "storm", "storm and pages"), ("quiet", "without", "beside"), rates, strict=True)
    return "\n".join(
        [
            "# The dashboard in Chromium",
            "",
            f"{INCIDENTS:,} incidents in SQLite, one in fifty open. Seconds until a page can be used, each in a fresh context.",
            "",
            "| page | first look | median | worst |",
            "|---|---|---|---|",
            *(f"| {name} | {took[0]:.2f} | {median(took):.2f} | {max(took):.2f} |" for name, took in screens.items()),
            "",
            tempest,
            "",
            "| | API median ms | API p95 ms | alerts taken a second |",
            "|---|---|---|---|",
            *(f"| {name} | {1e3 * median(told[key]):.1f} | {1e3 * p95(told[key]):.1f} | {rate} |" for name, key, rate in rows),
            "",
            verdict,
        ]
    )
