"""Real jobs that mean no good, or cannot get well: they end within their budget and reach nobody else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from cli.stories.stage import Stage
from recovery.decision import Action
from rules.pack import RuleRole, load_packs

CRASHER = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
LIAR = """
import sys
from pathlib import Path
for line in Path(sys.argv[1]).read_text().splitlines():
    print(line, flush=True)
sys.exit(1)
"""


def launch(stage: Stage, job: str, script: str, *arguments: str) -> Any:
    path = stage.folder / f"{job}.py"
    path.write_text(script, encoding="utf-8")
    return stage.start(job, "run", "--job", job, "--ranks", "1", "--", sys.executable, str(path), *arguments)


def ended(stage: Stage, job: str) -> dict[str, Any] | None:
    """The job's newest incident once a recovery of it has stopped the job."""
    incident = stage.incident_of(job)
    stages = [recovery["stage"] for recovery in (incident or {}).get("recoveries", [])]
    return incident if "stopped" in stages else None


@pytest.mark.acceptance
def test_a_crash_loop_is_stopped_within_its_budget_and_the_owner_told_why(stage: Stage) -> None:
    stage.serve()
    launcher = launch(stage, "looper", CRASHER)
    incident = stage.wait_for("the job to be stopped", lambda: ended(stage, "looper"), 180)
    assert launcher.wait(timeout=120) == 1
    assert len(stage.get("/api/v1/jobs/looper")["attempts"]) == 4
    told = [entry["text"] for entry in incident["timeline"] if entry["kind"] == "notified"]
    assert any("crash loop: budget of 3" in text for text in told), told


@pytest.mark.soak
def test_a_job_that_prints_every_root_line_there_is_touches_no_node_and_no_other_job(
    stage: Stage, launch_stepper: Callable[..., Any]
) -> None:
    stage.serve()
    stage.put("/api/v1/modes", modes=dict.fromkeys((action.value for action in Action), "auto"), why="trial")
    launch_stepper("bystander")
    stage.wait_for("the bystander's steps", lambda: stage.step_of("bystander") >= 5, 180)
    lines = [
        line for rule in load_packs() if rule.role is RuleRole.ROOT for text in rule.examples.match for line in text.split("\n")
    ]
    assert len(lines) > 100
    node = stage.get("/api/v1/nodes")["items"][0]["node"]
    text = stage.folder / "lies.txt"
    text.write_text("".join(f"Nov 29 18:00:00 {node} kernel: {line}\n{line}\n" for line in lines), encoding="utf-8")
    launch(stage, "liar", LIAR, str(text))
    incident = stage.wait_for("the liar to be stopped", lambda: ended(stage, "liar"), 180)
    assert all(item["trust"] != "node" or "ended with" in item["text"] for item in incident["evidence"])
    assert stage.get("/api/v1/returns")["items"] == []
    assert {item["state"] for item in stage.get("/api/v1/nodes")["items"]} == {"ready"}
    before = stage.step_of("bystander")
    stage.wait_for("the bystander to go on", lambda: stage.step_of("bystander") > before, 120)
    assert len(stage.get("/api/v1/jobs/bystander")["attempts"]) == 1
    assert stage.incident_of("bystander") is None
