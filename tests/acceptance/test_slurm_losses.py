"""What Slurm itself ends, with its own patience: a node whose daemon was killed, and a time limit."""

from __future__ import annotations

import pytest

from tests.slurm_lab import Lab


@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_lost_node_and_a_time_limit(lab: Lab) -> None:
    """slurmd killed -9: Slurm requeues by itself. The time limit: what was saved stays, and nothing is restarted."""
    limited = lab.submit("--time=10", "--nodelist=n[2-3]")
    lab.steps(limited)
    job = lab.submit("--exclude=n3")
    lab.steps(job)
    lost = sorted(lab.nodes_of(job))[1]
    lab.cluster.run("scontrol", "update", f"JobId={limited}", "EndTime=now+10seconds")
    lab.cluster.kill_slurmd(lost)
    ended = lab.settled(limited, 300)
    assert (ended["reason"], ended["recoveries"][-1]["stage"]) == ("job_time_limit", "stopped")
    assert lab.cluster.job(limited)["JobState"] == "TIMEOUT"
    assert lab.saved(limited) > 0
    assert "saved step" in lab.cluster.output(limited)
    incident = lab.settled(job, 300)
    assert (incident["reason"], incident["node"], incident["state"]) == ("node_failure", lost, "verified")
    assert any(f"NodeName={lost} State=DOWN" in item["text"] for item in incident["evidence"])
    assert lost not in lab.nodes_of(job)
    assert lab.cluster.job(job)["Restarts"] == "1"
    lab.cluster.run("scancel", job)
