"""What nobody knew is confirmed once and recognised from then on: on real processes, with memory and rules, without a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.acceptance
@pytest.mark.timeout(500)
def test_a_failure_confirmed_once_is_recognised_with_other_hosts_ranks_and_numbers(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PITSTOP_LLM")}
    told = subprocess.run(
        [sys.executable, "-m", "pitstop_entry", "demo", "learn", "--folder", str(tmp_path / "demo")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=480,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert report["ok"] and report["third"] == "rule" and report["second"] in ("memory", "rule", "unknown")
    assert "phase lock" in report["pattern"] and "1234" not in report["pattern"]
    assert "SEV1" not in report["severity"]
