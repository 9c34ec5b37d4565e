"""Debian's Chromium, driven by Playwright, on a service of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.cluster import Night, night_of
from tests.service.service_process import ServiceProcess

ROOT = Path(__file__).parents[2]
AXE = "axe-core@4.14.1"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def need(program: str) -> str:
    found = shutil.which(program)
    if found is None and os.environ.get("CI"):
        pytest.fail(f"{program} is missing: .ci/run installs it")
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    program = need("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core, fetched once by npm."""
    folder = ROOT / "build" / AXE.replace("@", "-")
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        subprocess.run(
            [need("npm"), "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, AXE], check=True, timeout=100
        )
    return script.read_text()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("night")
    routes = folder / "notify.yaml"
    # Nobody listens there: a channel that fails is to be seen.
    routes.write_text(
        "channels: {oncall: {url: 'json://127.0.0.1:9/pager'}}\nroutes: [{match: {severity: [SEV1]}, channels: [oncall]}]\n"
    )
    with ServiceProcess(folder / "data", environment={"PITSTOP_NOTIFY_FILE": str(routes)}) as service:
        yield service


@pytest.fixture(scope="module")
def night(service: ServiceProcess) -> Iterator[Night]:
    night = night_of(service)
    yield night
    night.client.close()


def sign_in(page: Page, service: ServiceProcess) -> None:
    """With the admin token, by keyboard."""
    page.goto(f"{service.url}/login")
    page.keyboard.type((service.data_dir / "admin.token").read_text().strip())
    page.keyboard.press("Enter")
    page.wait_for_url(f"{service.url}/")
