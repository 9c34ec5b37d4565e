"""Localisation with a real service and real node agents, one of which has a memory that lies: by hand, and in a recovery."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.stories.stage import Stage, free_port
from tests.node.fabric import build_liar
from tests.node.peer import ROOT

pytestmark = pytest.mark.acceptance
NODES = ("n1", "n2", "n3")
LIAR = "n3"

# Rank 0, on a good node, claims what no process can know for sure: that a GPU is gone. Says nothing of the kind later.
ACCUSER = """
import os, sys, time
import pitstop
monitor = pitstop.init()
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
step = 0 if first else pitstop.resume().step or 0
while True:
    with monitor.step(step):
        time.sleep(0.02)
    if first and step == 300 and os.environ["RANK"] == "0":
        print("NVRM: Xid (PCI:0000:b3:00.0): 79, pid=1234, name=python, GPU has fallen off the bus.", flush=True)
        sys.exit(1)
    step += 1
"""


@pytest.fixture
def probing(stage: Stage) -> Stage:
    """A service, and `pitstop node` for each of NODES on this machine; what LIAR sends in probes is falsified."""
    stage.serve()
    lying = stage.folder / "python-lying"
    lying.write_text(f'#!/bin/sh\nLD_PRELOAD={build_liar(stage.folder)} exec {sys.executable} "$@"\n')
    lying.chmod(0o755)
    for node in NODES:
        python = str(lying) if node == LIAR else sys.executable
        stage.start(f"agent-{node}", "node", "--node", node, "--python", python, "--data-dir", str(stage.folder / node))

    def offered() -> bool:
        return sum(1 for node in stage.get("/api/v1/nodes")["items"] if node["probes"]) == len(NODES)

    stage.wait_for("agents that offer probes", offered, 300)
    return stage


@pytest.mark.timeout(600)
def test_the_node_whose_data_is_wrong_is_found(probing: Stage) -> None:
    token = probing.data_directory / "admin.token"
    words = ["localize", *NODES, "--limit", "60", "--json", "--service", probing.url, "--token-file", str(token)]
    said = subprocess.run([sys.executable, str(ROOT / "pitstop_entry.py"), *words], capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert found["verdict"]["isolate"] == [LIAR], found
    assert "wrong words" in found["verdict"]["nodes"][LIAR]["why"]
    assert {found["verdict"]["nodes"][node]["verdict"] for node in ("n1", "n2")} == {"good"}


def start_job(stage: Stage, script: Path) -> None:
    """A rank on each node, in the care of an agent that is told where to find the others."""
    rendezvous = f"127.0.0.1:{free_port()}"
    for place, node in enumerate(NODES):
        where = ["--node", node, "--node-rank", str(place), "--nnodes", "2:3", "--rendezvous", rendezvous]
        data = ["--data-dir", str(stage.folder / f"job-{node}")]
        stage.start(f"job-{node}", "run", "--job", "gpt", "--no-spare", *where, *data, "--", sys.executable, str(script))


@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_job_that_accuses_the_wrong_node_is_stopped_probed_and_goes_on_without_the_broken_one(probing: Stage) -> None:
    probing.put("/api/v1/modes", modes={"isolate": "auto"}, why="trial")
    script = probing.folder / "accuser.py"
    script.write_text(ACCUSER)
    start_job(probing, script)

    def over() -> dict[str, Any] | None:
        incident = probing.incident_of("gpt")
        stages = [recovery["stage"] for recovery in (incident or {}).get("recoveries", [])]
        return incident if stages and stages[-1] in ("verified", "stopped", "escalated") else None

    incident = probing.wait_for("the recovery", over, 240)
    assert incident["localization"], incident["timeline"]
    assert (incident["reason"], incident["state"]) == ("gpu_fallen_off_bus", "verified")
    found = incident["localization"]
    assert found["verdict"]["isolate"] == [LIAR], found
    assert {probe["round"] for probe in found["probes"]} >= {0, 1}
    decided = [entry["text"] for entry in incident["timeline"] if entry["kind"] == "decided"]
    assert f"localisation confirmed {LIAR}" in decided[-1]
    assert [item["node"] for item in probing.get("/api/v1/returns")["items"]] == [LIAR]
    newest = max(probing.get("/api/v1/jobs/gpt")["attempts"], key=lambda attempt: attempt["generation"])
    assert {rank["node"] for rank in newest["ranks"]} == {"n1", "n2"}
