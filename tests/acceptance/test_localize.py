"""`pitstop localize` against a real service and real node agents, one of which has a memory that lies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.node.fabric import build_liar, wait_for
from tests.node.peer import ROOT
from tests.service.service_process import ServiceProcess

pytestmark = pytest.mark.acceptance
NODES = ("n1", "n2", "n3")


@contextmanager
def agents(service: ServiceProcess, folder: Path, token: Path, liar: str) -> Iterator[None]:
    """`pitstop node` for each of NODES on this machine; what `liar` sends is falsified."""
    lying = folder / "python-lying"
    lying.write_text(f'#!/bin/sh\nLD_PRELOAD={build_liar(folder)} exec {sys.executable} "$@"\n')
    lying.chmod(0o755)
    running = []
    try:
        for node in NODES:
            python = str(lying) if node == liar else sys.executable
            words = ["node", "--node", node, "--python", python, "--service", service.url, "--token-file", str(token)]
            command = [sys.executable, str(ROOT / "pitstop_entry.py"), *words, "--data-dir", str(folder / node)]
            running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=folder))
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


@pytest.mark.timeout(600)
def test_the_node_whose_data_is_wrong_is_found_and_the_agents_leave_nothing_behind(tmp_path: Path) -> None:
    token = tmp_path / "data" / "admin.token"
    with ServiceProcess(tmp_path / "data") as service, agents(service, tmp_path, token, liar="n3"):
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        words = ["localize", *NODES, "--limit", "60", "--json", "--service", service.url, "--token-file", str(token)]
        command = [sys.executable, str(ROOT / "pitstop_entry.py"), *words]

        def offered() -> bool:
            nodes = httpx2.get(f"{service.url}/api/v1/nodes", headers=headers, timeout=30).json()["items"]
            return len([node for node in nodes if node["probes"]]) == len(NODES)

        wait_for(offered, 300)
        said = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert found["verdict"]["isolate"] == ["n3"], found
    assert "wrong words" in found["verdict"]["nodes"]["n3"]["why"]
    assert {found["verdict"]["nodes"][node]["verdict"] for node in ("n1", "n2")} == {"good"}
