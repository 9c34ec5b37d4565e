"""The main story: a killed rank is restarted past where it died; a bug that never heals is stopped and its owner told."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cli.stories.stage import Stage, StoryError

__all__ = ["FaultReport", "tell"]

TRAINING = Path(__file__).with_name("tiny_gpt.py")
ROLES = ("root", "cascade", "teardown", "context")
SETTLED = ("verified", "resolved")


@dataclass(frozen=True)
class FaultReport:
    """How one fault went; the fields of build/demo/report.json (CONTRACT.md)."""

    kind: str
    noticed_seconds: float
    reason: str
    severity: str
    directive: str
    verified: bool
    step_before: int | None
    step_after: int | None


def seconds_of(stamp: str | float) -> float:
    """Seconds since the epoch of an API time."""
    return float(stamp) if isinstance(stamp, (int, float)) else datetime.fromisoformat(stamp).timestamp()


def launch(stage: Stage, job: str, *script: str) -> Any:
    checkpoint = stage.folder / f"{job}.pt"
    command = [sys.executable, str(TRAINING), "--checkpoint", str(checkpoint), *script]
    return stage.start(job, "run", "--job", job, "--ranks", "2", "--", *command)


def processes_of(stage: Stage, job: str) -> dict[int, int]:
    """The process id of each rank in the present attempt."""
    attempts = (stage.get(f"/api/v1/jobs/{job}") or {}).get("attempts", [])
    newest: dict[str, Any] | None = max(attempts, key=lambda attempt: int(attempt["generation"]), default=None)
    return {rank["rank"]: rank["pid"] for rank in newest["ranks"]} if newest else {}


def directive_of(incident: dict[str, Any]) -> str:
    """What the launcher of the incident's job was told last, or what the recovery carried out."""
    told = [recovery["directive"]["directive"] for recovery in incident["recoveries"] if recovery["directive"]]
    return str(told[-1]) if told else "wait"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def print_incident(incident: dict[str, Any], say: Callable[[str], None]) -> None:
    say(f"  {incident['severity']}  {incident['reason']}  ({incident['source']})  {incident['summary']}")
    shown = sorted(incident["evidence"], key=lambda line: ROLES.index(line["role"]))
    for line in shown[:3]:
        where = "" if line.get("rank") is None else f"[rank {line['rank']}] "
        say(f"    {line['role']:<8} {where}{line['text'].strip()[:110]}")
    for entry in incident["timeline"]:
        moment = datetime.fromtimestamp(seconds_of(entry["time"])).strftime("%H:%M:%S.%f")[:-3]
        say(f"    {moment}  {entry['kind']:<12} {entry['text'][:110]}")


def killed_rank(stage: Stage, say: Callable[[str], None]) -> FaultReport:
    """Kill rank 1 with signal 9 once it has trained a while; the job must pass the step where it died."""
    say("\n1. Two ranks train; rank 1 is killed with signal 9.")
    job = "demo-gpt"
    launcher = launch(stage, job, "--steps", "120")
    stage.wait_for("training to reach step 12", lambda: stage.step_of(job) >= 12, 60)
    step_before, victim = stage.step_of(job), processes_of(stage, job)[1]
    killed_at = time.time()
    os.kill(victim, signal.SIGKILL)
    say(f"  step {step_before}: kill -9 {victim}")
    incident = stage.wait_for("an incident", lambda: stage.incident_of(job), 30)
    noticed = first_exit(incident)["time"] - killed_at
    incident = stage.wait_for("the recovery to be verified", lambda: settled(stage, job), 90)
    step_after = stage.wait_for("training beyond where it died", lambda: passed(stage, job, step_before), 60)
    print_incident(incident, say)
    say(f"  training passed step {step_before} again and is at step {step_after}")
    status = launcher.wait(timeout=120)
    if status != 0:
        raise StoryError(f"the launcher of {job} ended with status {status}; see {stage.folder}/{job}.log")
    say("  the job ended well")
    return FaultReport(
        "kill_rank",
        round(noticed, 3),
        incident["reason"],
        incident["severity"],
        directive_of(incident),
        step_after > step_before,
        step_before,
        step_after,
    )


def settled(stage: Stage, job: str) -> dict[str, Any] | None:
    incident = stage.incident_of(job)
    return incident if incident and incident["state"] in SETTLED else None


def passed(stage: Stage, job: str, step: int) -> int | None:
    present = stage.step_of(job)
    return present if present > step else None


def lasting_bug(stage: Stage, say: Callable[[str], None]) -> FaultReport:
    """Train into a batch that lacks its labels every time; the job must be stopped, not restarted, and its owner told."""
    say("\n2. The same training meets a record without labels: no restart will heal that.")
    job, bad_step = "demo-bug", 12
    launcher = launch(stage, job, "--steps", "120", "--bad-record-at", str(bad_step))
    processes = stage.wait_for("the ranks to start", lambda: processes_of(stage, job), 60)
    incident = stage.wait_for("an incident", lambda: stage.incident_of(job), 60)
    stage.wait_for("the decision to stop to be verified", lambda: settled(stage, job), 60)
    status = launcher.wait(timeout=60)
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


def first_exit(incident: dict[str, Any]) -> dict[str, Any]:
    """The first observed failure of the incident, as the agent reported it."""
    first: dict[str, Any] = incident["failures"][0]["report"]["failed"][0]
    return first


def tell(stage: Stage, say: Callable[[str], None]) -> dict[str, Any]:
    """Play the story on `stage`; the report of CONTRACT.md. Raises StoryError where something did not happen."""
    stage.serve()
    say(f"Pitstop serves at {stage.url}")
    faults = [killed_rank(stage, say), lasting_bug(stage, say)]
    return {"ok": all(fault.verified for fault in faults), "faults": [asdict(fault) for fault in faults]}
