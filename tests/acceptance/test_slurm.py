"""Jobs of two nodes under a real Slurm with Pitstop's hooks in it: what goes wrong is mended, what was meant is left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cli.stories.stage import open_stage
from tests.slurm_cluster import SlurmCluster
from tests.slurm_lab import XID, Lab


@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_killed_rank_is_restarted_a_drain_is_left_alone_and_a_cancel_is_the_end(lab: Lab) -> None:
    job = lab.submit()
    lab.steps(job)
    os.kill(lab.job(job)["attempts"][0]["ranks"][1]["pid"], signal.SIGKILL)
    incident = lab.settled(job)
    assert (incident["reason"], incident["state"]) == ("process_killed_sigkill", "verified")
    assert lab.cluster.job(job)["Restarts"] == "0"
    attempts = len(lab.job(job)["attempts"])

    lab.cluster.run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=new PSU on Monday")
    lab.stage.wait_for("the drain to be known", lambda: lab.stage.get("/api/v1/nodes/n1")["state"] == "held", 120)
    lab.steps(job, lab.stage.step_of(job) + 5)
    assert lab.cluster.node("n1")["Reason"].startswith("new PSU on Monday")

    before = lab.stage.step_of(job)
    lab.cluster.run("scancel", job)
    lab.stage.wait_for("the cancel to be known", lambda: lab.job(job)["state"] == "cancelled", 180)
    assert lab.saved(job) >= before
    assert [item["reason"] for item in lab.stage.get(f"/api/v1/incidents?job={job}")["items"]] == ["process_killed_sigkill"]
    assert len(lab.job(job)["attempts"]) == attempts
    lab.stage.wait_for("Slurm to have cleaned up after it", lambda: lab.cluster.job(job)["JobState"] == "CANCELLED", 60)
    assert lab.cluster.node("n1")["State"] == "IDLE+DRAIN"
    lab.cluster.reset()


@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_preempted_job_is_left_to_slurm_and_verified_when_it_runs_again(lab: Lab) -> None:
    job = lab.submit()
    reached = lab.steps(job)
    urgent = lab.cluster.submit("#!/bin/bash\nsleep 1\n", "--nodes=4", "--exclusive", "--partition=urgent")
    incident = lab.settled(job)
    assert incident["reason"] == "job_preempted"
    assert [recovery["stage"] for recovery in incident["recoveries"]] == ["verified"]
    assert incident["recoveries"][0]["relaunches"] == 0
    assert any(item["trust"] == "node" and "PREEMPTED" in item["text"] for item in incident["evidence"])
    assert lab.cluster.job(job)["Restarts"] == "1"
    assert lab.cluster.job(urgent)["JobState"] in ("COMPLETED", "COMPLETING")
    generations = [attempt["generation"] for attempt in lab.job(job)["attempts"]]
    assert len(set(generations)) == 2
    assert "from step 0" not in lab.cluster.output(job).split("[rank0]: rank 0 of 2 ")[2]
    assert lab.saved(job) >= reached - 10
    lab.cluster.run("scancel", job)


@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_faulty_node_is_drained_its_job_requeued_without_it_and_the_node_comes_back_after_its_repair(lab: Lab) -> None:
    lab.call("PUT", "/api/v1/modes", {"modes": {"isolate": "auto", "requalify": "auto", "uncordon": "auto"}, "why": "trial"})
    lab.call("PUT", "/api/v1/breaker", {"probation_seconds": 1.0, "why": "trial"})
    job = lab.submit()
    reached = lab.steps(job)
    victim = next(rank for rank in lab.job(job)["attempts"][0]["ranks"] if rank["rank"] == 1)
    node = victim["node"]
    line = {"node": node, "trust": "node", "path": "/dev/kmsg", "number": 1, "time": time.time(), "line": XID}
    lab.call("POST", "/api/v1/logs", json.dumps(line).encode(), lab.node_token(node))
    os.kill(victim["pid"], signal.SIGKILL)
    incident = lab.settled(job)
    assert (incident["reason"], incident["node"], incident["state"]) == ("gpu_fallen_off_bus", node, "verified")
    assert incident["recoveries"][-1]["relaunches"] == 1
    assert lab.cluster.node(node)["Reason"].startswith(f"pitstop {incident['id']}: ")
    assert lab.cluster.run("squeue", "-h", "-j", job, "-o", "%x") == node
    assert node not in lab.nodes_of(job)
    assert lab.cluster.job(job)["Restarts"] == "1"
    lab.steps(job, reached)
    answer = subprocess.run(
        [lab.cluster.folder / "hooks" / "healthcheck"],
        env={"SLURMD_NODENAME": node, "SLURM_CLUSTER_NAME": "lab"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert answer.stdout.startswith(f"CRITICAL: {node} is taken out by Pitstop")

    lab.call("POST", f"/api/v1/nodes/{node}/repair", {"why": "GPU replaced"})
    lab.stage.wait_for("the node to be back", lambda: lab.cluster.node(node)["State"] == "IDLE", 180)
    lab.stage.wait_for("its return", lambda: lab.stage.get("/api/v1/returns")["items"][0]["phase"] == "returned", 60)
    lab.cluster.run("scancel", job)


@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.timeout(300)
def test_without_pitstop_jobs_start_run_and_end_as_they_would(slurm: SlurmCluster, tmp_path: Path) -> None:
    slurm.tell(None)
    with open_stage(tmp_path / "stage") as stage:
        lab = Lab(slurm, stage)
        stage.data_directory.mkdir()
        lab.token_file.write_text("nobody asks")
        job = lab.submit(steps=5)
        alone = "--export=ALL,RANK=0,WORLD_SIZE=1,MASTER_ADDR=127.0.0.1,MASTER_PORT=0"
        plain = lab.submit(alone, steps=5, pitstop=False)
        for one in (job, plain):
            slurm.until(f"job {one} to end", lambda one=one: slurm.job(one)["JobState"] in ("COMPLETED", "FAILED"), 200)
            assert slurm.job(one)["JobState"] == "COMPLETED", slurm.output(one)
        assert "rank 1 of 2 from step 0" in slurm.output(job)
        assert "going on without it" in slurm.output(job)
