"""The story of learning: what nobody knows is confirmed by an operator once, and recognised from then on without a model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from cli.stories.stage import Stage, StoryError

__all__ = ["tell"]

CAUSE = "ib_link_flap"
# What the job's own library says when its link is lost: no rule of any pack knows it.
PROGRAM = (
    "import os, sys, time; "
    "print('epoch', {epoch}, 'begins', flush=True); "
    "print('{host}: ringmesh lane {lane} lost its phase lock after {wait} ms, resync gave up', file=sys.stderr, flush=True); "
    "time.sleep(0.2); sys.exit({status})"
)


def run(stage: Stage, job: str, epoch: int, host: str, lane: int, wait: int, status: int) -> dict[str, Any]:
    """Run the failing job to its end; its incident, once rules and memory have spoken."""
    program = PROGRAM.format(epoch=epoch, host=host, lane=lane, wait=wait, status=status)
    command = [sys.executable, "-c", program]
    stage.start(job, "run", "--job", job, "--ranks", "1", "--max-restarts", "0", "--", *command)

    def looked_up() -> dict[str, Any] | None:
        incident = stage.incident_of(job)
        kinds = {entry["kind"] for entry in incident["timeline"]} if incident else set()
        known = incident is not None and incident["source"] == "rule" and not unnamed(incident)
        return incident if "ladder" in kinds or (known and "diagnosed" in kinds) else None

    return stage.wait_for(f"the verdict on {job}", looked_up, 90)


def unnamed(incident: dict[str, Any]) -> bool:
    return incident["reason"] in ("unknown", "process_exit_unattributed")


def print_rungs(incident: dict[str, Any], say: Callable[[str], None]) -> None:
    say(f"  {incident['reason']} ({incident['source']}): {incident['summary'][:140]}")
    for entry in incident["timeline"]:
        for rung in entry["data"].get("rungs", ()) if entry["kind"] == "ladder" else ():
            say(f"    {rung['rung']:<8} {rung['reason'] or 'abstains':<28} {rung['why'][:90]}")


def tell(stage: Stage, say: Callable[[str], None]) -> dict[str, Any]:
    """Play the story; its report: {"ok", "first", "second", "third": who named the cause, "rule", "pattern"}."""
    stage.serve()
    memory = (stage.get("/readyz") or {})["memory"]
    say(f"Pitstop serves at {stage.url}; memory: {memory['why']}; no model is configured")
    say("\n1. A job fails in a way that no rule knows; it goes up the ladder, and nobody knows it.")
    first = run(stage, "learn-one", 3, "node7", 3, 1234, 13)
    print_rungs(first, say)
    if not unnamed(first):
        raise StoryError(f"the first failure was named {first['reason']}, which nobody could know")
    say(f"\n2. An operator finds the cause and says so: {CAUSE}. A rule is proposed, and the gate judges it.")
    stage.post(f"/api/v1/incidents/{first['id']}/feedback", right=False, reason=CAUSE, comment="seen on the switch")

    def in_shadow() -> dict[str, Any] | None:
        found = (stage.get("/api/v1/candidates?state=shadow") or {"items": []})["items"]
        return found[0] if found else None

    rule = stage.wait_for("a rule in shadow", in_shadow, 60)
    say(f"  {rule['code']} finds  {rule['pattern']}")
    say(f"  {rule['history'][-1]['why']}")
    say("\n3. Another job, host, lane and number: memory knows it, without a model.")
    second = run(stage, "learn-two", 41, "gpu-12", 71, 9, 1)
    print_rungs(second, say)
    say("\n4. The operator puts the rule into use: from now on it is the first verdict.")
    stage.post(f"/api/v1/candidates/{rule['id']}/approve", comment="it is always this")
    third: dict[str, Any] = {}
    # A replica takes up what was put into use within a second or two.
    for number in range(3):
        third = run(stage, f"learn-three-{number}", 5, f"dgx{number}.example.org", 512, 77, 13)
        if third["rule"] == rule["code"]:
            break
    print_rungs(third, say)
    named = second["reason"] == CAUSE if memory["on"] else unnamed(second)
    return {
        "ok": named and third["reason"] == CAUSE and third["rule"] == rule["code"],
        "faults": [],
        "first": first["source"],
        "second": second["source"],
        "third": third["source"],
        "rule": rule["code"],
        "pattern": rule["pattern"],
        "severity": [first["severity"], second["severity"], third["severity"]],
    }
