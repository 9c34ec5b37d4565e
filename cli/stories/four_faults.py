"""The main story: four ranks on two nodes lose a rank, a rank stands still, a node is lost and comes back; and a bug never heals.

Both nodes are on this machine: an agent each, with its own name and state. What happens to them is real.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cli.stories.observing import (
    FaultReport,
    alive,
    directive_of,
    first_exit,
    passed,
    print_incident,
    processes_of,
    seconds_of,
    settled,
)
from cli.stories.stage import Stage, StoryError, free_port

__all__ = ["tell"]

TRAINING = Path(__file__).with_name("tiny_gpt.py")
JOB = "demo-gpt"
NODES = ("n1", "n2")


def training(stage: Stage, job: str, *script: str) -> list[str]:
    return [sys.executable, str(TRAINING), "--checkpoint", str(stage.folder / f"{job}.pt"), *script]


class TwoNodes:
    """The job on its two nodes. Ranks 0 and 1 run on n1, 2 and 3 on n2."""

    def __init__(self, stage: Stage, say: Callable[[str], None]) -> None:
        self.stage = stage
        self.say = say
        self.finish = stage.folder / "finish"
        self.rendezvous = f"127.0.0.1:{free_port()}"
        self.agents: dict[str, Any] = {}
        self.known: set[str] = set()

    def start(self, node: str) -> None:
        command = training(self.stage, JOB, "--until", str(self.finish))
        options = ["--ranks", "2", "--nnodes", "1:2", "--rendezvous", self.rendezvous, "--node-rank", str(NODES.index(node))]
        place = ["--node", node, "--data-dir", str(self.stage.folder / node)]
        self.agents[node] = self.stage.start(f"{JOB}-{node}", "run", "--job", JOB, *options, *place, "--", *command)

    def ranks_of(self, node: str) -> dict[int, int]:
        attempts = (self.stage.get(f"/api/v1/jobs/{JOB}") or {}).get("attempts", [])
        newest: dict[str, Any] = max(attempts, key=lambda attempt: int(attempt["generation"]), default={"ranks": []})
        return {rank["rank"]: rank["pid"] for rank in newest["ranks"] if rank["node"] == node}

    def runs_on(self, ranks: int) -> bool:
        """Whether as many ranks as that have made steps in the present generation."""
        document = self.stage.get(f"/api/v1/jobs/{JOB}") or {}
        states = [it for it in document.get("rank_states", []) if it["generation"] == document["generation"]]
        return len(states) == ranks and all(it["state"] == "running" and (it["step"] or 0) > 0 for it in states)

    def step(self) -> int:
        return self.stage.step_of(JOB)

    def incident(self) -> dict[str, Any] | None:
        """The incident of the fault that is being played."""
        found = self.stage.incident_of(JOB)
        return found if found is not None and found["id"] not in self.known else None

    def settled(self) -> dict[str, Any] | None:
        found = self.incident()
        return settled(self.stage, JOB) if found is not None else None

    def verified(self, kind: str, noticed: Callable[[dict[str, Any]], float], step_before: int) -> FaultReport:
        """Wait for the end of the recovery; what it came to."""
        self.stage.wait_for("an incident", self.incident, 120)
        incident = self.stage.wait_for("the recovery to be verified", self.settled, 240)
        step_after = self.stage.wait_for("training beyond where it failed", lambda: passed(self.stage, JOB, step_before), 120)
        incident = self.stage.incident_of(JOB) or incident
        self.known.add(incident["id"])
        print_incident(incident, self.say)
        self.say(f"  training passed step {step_before} again and is at step {step_after}")
        return FaultReport(
            kind,
            round(noticed(incident), 3),
            incident["reason"],
            incident["severity"],
            directive_of(incident),
            step_after > step_before,
            step_before,
            step_after,
        )

    def steps_more(self, count: int) -> int:
        """Let it train a while; the step that it is at then."""
        since = self.step()
        self.stage.wait_for(f"{count} more steps", lambda: self.runs_on(4) and self.step() >= since + count, 180)
        return self.step()


def killed_rank(job: TwoNodes) -> FaultReport:
    """Kill rank 3 with signal 9; the job must pass the step where it died."""
    job.say("\n1. Four ranks train on two nodes; rank 3 is killed with signal 9.")
    step_before, victim = job.steps_more(8), job.ranks_of("n2")[3]
    killed_at = time.time()
    os.kill(victim, signal.SIGKILL)
    job.say(f"  step {step_before}: kill -9 {victim}")

    def noticed(incident: dict[str, Any]) -> float:
        reported = [rank for failure in incident["failures"] for rank in failure["report"]["failed"] if rank["signal"] == 9]
        return float(reported[0]["time"]) - killed_at

    return job.verified("kill_rank", noticed, step_before)


def stopped_rank(job: TwoNodes) -> FaultReport:
    """Stop rank 2: nobody dies, and nobody gets anywhere."""
    job.say("\n2. Rank 2 is stopped (SIGSTOP): it lives, and all wait for it.")
    step_before, victim = job.steps_more(12), job.ranks_of("n2")[2]
    stopped_at = time.time()
    os.kill(victim, signal.SIGSTOP)
    job.say(f"  step {step_before}: kill -STOP {victim}")
    return job.verified("stop_rank", lambda incident: seconds_of(incident["first_seen"]) - stopped_at, step_before)


def lost_node(job: TwoNodes) -> FaultReport:
    """Kill all that runs on n2, its agent too: the job goes on with two ranks, and with four when the node is back."""
    job.say("\n3. Node n2 is lost, with its agent and all its processes.")
    step_before, victims = job.steps_more(8), job.ranks_of("n2")
    lost_at = time.time()
    job.agents["n2"].kill()
    for pid in [*victims.values(), *processes_naming(job.stage.folder / "n2")]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    job.agents["n2"].wait()
    report = job.verified("lose_node", lambda incident: seconds_of(incident["first_seen"]) - lost_at, step_before)
    job.say("  the node comes back: its agent is started again")
    smaller = job.step()
    job.start("n2")
    job.stage.wait_for("four ranks at work again", lambda: job.runs_on(4) and job.step() > smaller, 180)
    job.say(f"  four ranks train again, at step {job.step()}")
    return report


def processes_naming(folder: Path) -> list[int]:
    """Processes whose command line names `folder`: the keeper of a node."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def played_on_two_nodes(stage: Stage, say: Callable[[str], None]) -> list[FaultReport]:
    job = TwoNodes(stage, say)
    for node in NODES:
        job.start(node)
    faults = [killed_rank(job), stopped_rank(job), lost_node(job)]
    job.finish.touch()
    for node in NODES:
        status = job.agents[node].wait(timeout=120)
        if status != 0:
            raise StoryError(f"the launcher on {node} ended with status {status}; see {stage.folder}/{JOB}-{node}.log")
    say("  the job ended well on both nodes")
    return faults


def lasting_bug(stage: Stage, say: Callable[[str], None]) -> FaultReport:
    """Train into a batch that lacks its labels every time; the job must be stopped, not restarted, and its owner told."""
    say("\n4. The same training, on one node, meets a record without labels: no restart will heal that.")
    job, bad_step = "demo-bug", 12
    launcher = stage.start(
        job, "run", "--job", job, "--ranks", "2", "--", *training(stage, job, "--bad-record-at", str(bad_step))
    )
    processes = stage.wait_for("the ranks to start", lambda: processes_of(stage, job), 180)
    incident = stage.wait_for("an incident", lambda: stage.incident_of(job), 180)
    stage.wait_for("the decision to stop to be verified", lambda: settled(stage, job), 180)
    status = launcher.wait(timeout=180)
    incident = stage.incident_of(job) or incident
    noticed = first_exit(incident)["time"] - first_exit(incident)["raised_at"]
    print_incident(incident, say)
    notified = [entry for entry in incident["notifications"] if entry["audience"] == "owner"]
    gone = not any(alive(pid) for pid in processes.values())
    restarted = len((stage.get(f"/api/v1/jobs/{job}") or {}).get("attempts", [])) > 1
    say(f"  the launcher gave up with status {status}; processes gone: {gone}; the owner was told: {bool(notified)}")
    return FaultReport(
        "lasting_exception",
        round(noticed, 3),
        incident["reason"],
        incident["severity"],
        directive_of(incident),
        status == 1 and gone and not restarted and bool(notified),
        bad_step - 1,
        None,
    )


def tell(stage: Stage, say: Callable[[str], None]) -> dict[str, Any]:
    """Play the story on `stage`; the report of CONTRACT.md. Raises StoryError where something did not happen."""
    stage.serve()
    say(f"Pitstop serves at {stage.url}: the dashboard shows what happens")
    faults = [*played_on_two_nodes(stage, say), lasting_bug(stage, say)]
    return {"ok": all(fault.verified for fault in faults), "faults": [asdict(fault) for fault in faults]}
