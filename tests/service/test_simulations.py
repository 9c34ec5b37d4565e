"""What `pitstop simulate --keep` left stands on the report page."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from cli.main import run
from service.settings import Settings

SCENARIO = """
nodes: 4
days: 7
seeds: 2
tasks: [{name: "a < b", throughput: [0, 1.0e15, 2.0e15, 3.0e15, 4.0e15]}]
faults: {node_faults: 5, other_faults: 10, repair_days: [0.1, 0.5]}
policies: [unicron, megatron]
"""


def test_what_is_kept_stands_on_the_report_page_and_what_cannot_be_read_is_told(
    client: TestClient, settings: Settings, tmp_path: Path
) -> None:
    assert "Simulated" not in client.get("/report").text
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    with pytest.raises(SystemExit, match="0"):
        run(["simulate", str(path), "--keep", "our cluster", "--data-dir", str(settings.data_dir)])
    (settings.data_dir / "simulations" / "broken.json").write_text('{"nodes": "<b>many</b>"}')
    text = client.get("/report").text
    assert "our cluster" in text and "4 nodes, 7 days, 2 seeds" in text and "unicron over it" in text
    assert "broken" in text and "no document of pitstop simulate" in text
    assert "plotly.js" in text and "<b>many" not in text
