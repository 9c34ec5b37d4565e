"""The environment that a real slurmd of 22.05 gave to a step of two nodes, and what is read from it."""

from __future__ import annotations

import pytest

from node.slurm_environment import SlurmEnvironmentError, read_slurm_environment

STEP = {
    "SLURMD_NODENAME": "n1",
    "SLURM_CLUSTER_NAME": "lab",
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_NODELIST": "n[0-1]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_RESTART_COUNT": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[0-1]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_TOPOLOGY_ADDR": "n1",
}


def test_a_step_tells_job_attempt_place_and_leader():
    place = read_slurm_environment(STEP)
    assert place is not None
    assert (place.cluster, place.job, place.restarts) == ("lab", "42", 3)
    assert (place.node, place.node_rank, place.nodes, place.leader) == ("n1", 1, ("n0", "n1"), "n0")
    assert place.document == {"kind": "slurm", "cluster": "lab", "id": "42", "restarts": 3, "nodes": ["n0", "n1"]}


def test_the_first_attempt_has_no_restart_count_and_each_requeue_is_another_incarnation():
    first = read_slurm_environment({key: value for key, value in STEP.items() if key != "SLURM_RESTART_COUNT"})
    again = read_slurm_environment({**STEP, "SLURM_RESTART_COUNT": "1"})
    assert first is not None and again is not None
    assert first.restarts == 0
    assert first.incarnation != again.incarnation


def test_a_batch_script_without_srun_is_one_node():
    batch = {key: value for key, value in STEP.items() if not key.startswith("SLURM_STEP")}
    place = read_slurm_environment({**batch, "SLURMD_NODENAME": "n0", "SLURM_NODEID": "0"})
    assert place is not None
    assert (place.nodes, place.node_rank) == (("n0",), 0)


def test_several_tasks_on_a_node_are_told_how_to_start():
    with pytest.raises(SlurmEnvironmentError, match="--ntasks-per-node=1"):
        read_slurm_environment({**STEP, "SLURM_STEP_NUM_TASKS": "8"})


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_ID": ""}, {"SLURM_JOB_ID": "x"}, {"SLURM_JOB_ID": "42"}])
def test_outside_a_job_there_is_none(environment):
    assert read_slurm_environment(environment) is None
