"""What a story watches: incidents, the processes of a job, its steps; and how one fault is written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cli.stories.stage import Stage

__all__ = [
    "FaultReport",
    "alive",
    "directive_of",
    "first_exit",
    "passed",
    "print_incident",
    "processes_of",
    "seconds_of",
    "settled",
]

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


def settled(stage: Stage, job: str) -> dict[str, Any] | None:
    incident = stage.incident_of(job)
    return incident if incident and incident["state"] in SETTLED else None


def passed(stage: Stage, job: str, step: int) -> int | None:
    present = stage.step_of(job)
    return present if present > step else None


def first_exit(incident: dict[str, Any]) -> dict[str, Any]:
    """The first observed failure of the incident, as the agent reported it."""
    first: dict[str, Any] = incident["failures"][0]["report"]["failed"][0]
    return first
