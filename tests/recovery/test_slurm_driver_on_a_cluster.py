"""The Slurm driver against a real slurmctld and four real slurmds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from recovery.drivers.command import Operation, Values, render
from recovery.drivers.slurm import Carried, JobGoal, SlurmSite, Verb, carry_out, holder_of_node, node_templates
from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.acceptance

SITE = SlurmSite()
SLEEP = "#!/bin/bash\nsrun sleep 600\n"


def runner(cluster: SlurmCluster, log: list[str] | None = None) -> Callable[[Sequence[str], float], tuple[bool, str]]:
    def run(argv: Sequence[str], seconds: float) -> tuple[bool, str]:
        done = subprocess.run(
            argv,
            env=cluster.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        if log is not None and argv[0] != "squeue":
            log.append(" ".join(argv))
        return done.returncode == 0, done.stdout

    return run


def start(cluster: SlurmCluster, *options: str) -> str:
    job = cluster.submit(SLEEP, "--nodes=2", "--ntasks-per-node=1", *options)
    cluster.until("the job to run", lambda: cluster.job(job)["JobState"] == "RUNNING")
    return job


def carried(cluster: SlurmCluster, goal: JobGoal) -> Carried:
    """Carried out, again and again as the service would."""
    found = [carry_out(goal, SITE, runner(cluster))]
    cluster.until("the goal to be settled", lambda: found[-1].final or found.append(carry_out(goal, SITE, runner(cluster))))
    return found[-1]


def held(cluster: SlurmCluster, node: str) -> tuple[str | None, bool]:
    call = render(Operation.STATE, node_templates(SITE)[Operation.STATE], Values(node, "k"))
    return holder_of_node(runner(cluster)(call.argv, 10)[1])


def test_a_node_is_drained_with_our_mark_and_put_back(slurm: SlurmCluster) -> None:
    templates = node_templates(SITE)
    values = Values("n2", "k", incident="12", why="Xid 79")
    assert held(slurm, "n2") == (None, False)
    assert runner(slurm)(render(Operation.CORDON, templates[Operation.CORDON], values).argv, 10)[0]
    assert slurm.node("n2")["State"] == "IDLE+DRAIN"
    assert held(slurm, "n2") == ("pitstop 12: Xid 79", True)
    assert runner(slurm)(render(Operation.UNCORDON, templates[Operation.UNCORDON], values).argv, 10)[0]
    assert held(slurm, "n2") == (None, False)


def test_a_drain_of_an_operator_is_not_ours_and_a_node_that_is_down_is_nobodys(slurm: SlurmCluster) -> None:
    slurm.run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=bad PSU")
    assert held(slurm, "n3") == ("bad PSU", False)
    slurm.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=gone")
    assert held(slurm, "n2") == (None, False)


def test_a_job_with_a_forging_name_is_requeued_without_a_node_and_only_once(slurm: SlurmCluster) -> None:
    job = start(slurm, "--exclude=n3", "--job-name=x|1|PENDING|\n   JobState=CANCELLED Restarts=9")
    goal = JobGoal(Verb.REQUEUE, job, 0, "12", "Xid 79 on n1", ("n1",))
    first = carried(slurm, goal)
    assert first.done, first
    slurm.until("it to run again", lambda: "RUNNING" in slurm.run("squeue", "-h", "-j", job, "-o", "%T"))
    assert slurm.run("squeue", "-h", "-j", job, "-o", "%N %x") == "n[0,2] n[1,3]"
    assert slurm.run("squeue", "-h", "-j", job, "-O", "RestartCnt,admin_comment:40").split() == [
        "1",
        *["pitstop", "12:", "Xid", "79", "on", "n1"],
    ]
    again = carry_out(goal, SITE, runner(slurm))
    assert (again.done, again.did) == (True, ())


def test_a_requeue_whose_maker_died_after_any_of_its_moves_is_completed(slurm: SlurmCluster) -> None:
    job = start(slurm)
    goal = JobGoal(Verb.REQUEUE, job, 0, "13", "Xid 79 on n1", ("n1",))
    did: list[str] = []
    run = runner(slurm, did)

    class Killed(Exception):
        pass

    def killed_after(moves: int) -> Callable[[Sequence[str], float], tuple[bool, str]]:
        def one(argv: Sequence[str], seconds: float) -> tuple[bool, str]:
            if len(did) >= moves:
                raise Killed
            return run(argv, seconds)

        return one

    def died_or_settled(moves: int) -> bool:
        try:
            return carry_out(goal, SITE, killed_after(moves)).final
        except Killed:
            return True

    for moves in (1, 2, 3, 4):
        slurm.until(f"{moves} moves", lambda moves=moves: died_or_settled(moves))
    assert carried(slurm, goal).done
    assert [line.split()[1] for line in did] == ["update", "requeuehold", "update", "release"]


def test_a_job_that_its_user_cancelled_stays_cancelled(slurm: SlurmCluster) -> None:
    job = start(slurm)
    slurm.run("scancel", job)
    slurm.until("the end", lambda: slurm.job(job)["JobState"] == "CANCELLED")
    left = carried(slurm, JobGoal(Verb.REQUEUE, job, 0, "14", "why"))
    assert (left.done, left.did) == (False, ()) and "left to its user" in left.detail


def test_hold_release_and_cancel_of_a_waiting_job(slurm: SlurmCluster) -> None:
    job = slurm.submit(SLEEP, "--begin=now+1hour")
    ours = JobGoal(Verb.HOLD, job, 0, "15", "its data set is broken")
    assert carried(slurm, ours).done
    assert slurm.job(job)["Reason"] in ("JobHeldUser", "JobHeldAdmin")
    assert carried(slurm, JobGoal(Verb.RELEASE, job, 0, "16", "somebody else's")).done is False
    assert carried(slurm, JobGoal(Verb.RELEASE, job, 0, "15", "mended")).done
    assert carried(slurm, JobGoal(Verb.CANCEL, job, 0, "15", "not needed")).done
    assert slurm.job(job)["JobState"] == "CANCELLED"


def test_a_controller_that_is_away_costs_a_bounded_time_and_nothing_is_done(slurm: SlurmCluster) -> None:
    away = SlurmSite(
        (sys.executable, "-c", "import sys; sys.exit('slurm_load_jobs error: Unable to contact slurm controller')"), 5
    )
    found = carry_out(JobGoal(Verb.CANCEL, "1", 0, "1", "w"), away, runner(slurm))
    assert (found.done, found.final, found.did) == (False, False, ())
