"""The environment that a real slurmd of 22.05 gave to a step of two nodes, and what is read from it."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest

from detectors.processes import identify
from node.care_states import Care, Phase
from node.job_state import JobState, Placement
from node.launch import Start, end_leftovers, plan_start
from node.rank_group import Launch
from node.slurm_environment import SlurmEnvironmentError, SlurmPlace, read_slurm_environment

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


PLACE = SlurmPlace("lab", "42", 0, "n1", 1, ("n0", "n1"))
LAUNCH = Launch("42", ("true",), 1, 3, "n1", None, place=PLACE)
LEFT = JobState("42", ("true",), "boot", 1.0, Care(Phase.RUNNING, 1, generation=4), incarnation=PLACE.incarnation)


def requeued(restarts: int) -> Launch:
    return dataclasses.replace(LAUNCH, place=dataclasses.replace(PLACE, restarts=restarts))


def test_a_launcher_that_died_within_an_attempt_is_succeeded_by_one_that_takes_its_ranks_over():
    assert plan_start(LEFT, LAUNCH, "boot", 2.0)[0] is Start.TAKEOVER


def test_a_requeue_takes_nothing_over_and_goes_on_under_a_generation_of_its_own():
    kind, state = plan_start(LEFT, requeued(1), "boot", 2.0)
    assert (kind, state.care.generation, state.formation) == (Start.FRESH, 5, None)
    assert state.incarnation == "slurm:lab:42:1"
    assert plan_start(None, requeued(3), "boot", 2.0)[1].care.generation == 3


def test_under_a_scheduler_it_is_the_scheduler_that_kills():
    assert plan_start(None, LAUNCH, "boot", 2.0)[1].care.grace_seconds > 3600


def test_what_an_earlier_attempt_left_running_here_is_ended():
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as left:
        previous = dataclasses.replace(LEFT, placement=Placement(keeper=identify(left.pid)))
        end_leftovers(previous, LEFT)
        assert left.poll() is None
        end_leftovers(previous, plan_start(previous, requeued(1), "boot", 2.0)[1])
        assert left.wait(timeout=10) == -9


def test_every_attempt_meets_at_a_port_of_its_own():
    ports = {dataclasses.replace(PLACE, job=str(job), restarts=restarts).port for job in (42, 43) for restarts in range(5)}
    assert len(ports) == 10
    assert all(20_000 <= port < 32_768 for port in ports)
