"""`pitstop pipeline`: schedules for a training pipeline with failed workers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from cli.main import UsageError
from recovery.planning.pipeline.model import PipelineError

__all__ = ["app"]


def app(args: Sequence[str], prog_name: str) -> None:
    """Raises UsageError."""
    parser = argparse.ArgumentParser(
        prog=prog_name, description="Schedules for a training pipeline with failed workers (ReCycle)."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = commands.add_parser("plan", help="the schedule for one set of failures")
    one.add_argument("specification", metavar="SPEC.json", help="the pipeline and its failures, or - for standard input")
    one.add_argument("--json", action="store_true", help="print the whole schedule as one JSON document")
    one.add_argument("--seconds", type=float, default=10.0, help="the most time to spend on proving a small case (10; 0: none)")
    options = parser.parse_args(args)
    try:
        import numba  # noqa: F401
    except ImportError:
        raise UsageError("planning needs numba: pip install 'pitstop[plan]'") from None
    try:
        plan_one(options)
    except PipelineError as error:
        raise UsageError(f"{options.specification}: {error}") from None


def read_document(path: str) -> object:
    """Raises UsageError."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
        return json.loads(text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: no JSON: {error}") from None


def plan_one(options: argparse.Namespace) -> None:
    from recovery.planning.pipeline.planner import plan
    from recovery.planning.pipeline.specification import answer, find_plan, parse_specification, without_failures

    specification = parse_specification(read_document(options.specification))
    found = find_plan(specification, options.seconds)
    failed = found.schedule.problem.failed
    fault_free = found if not failed else plan(without_failures(specification), options.seconds)
    document = answer(specification, found, fault_free)
    if options.json:
        print(json.dumps(document))
        return
    proof = "optimal" if found.proven else f"no schedule is shorter than {found.bound}"
    print(f"period {found.period} ({proof}); without failures {fault_free.period}, 1F1B {document['one_f_one_b']}")
    if failed:
        print("failed: " + ", ".join(f"({replica}, {stage})" for replica, stage in sorted(failed)))
    for move in document.get("normalisation", {}).get("moves", []):
        print(f"normalisation: {tuple(move['worker'])} takes the place of {tuple(move['place'])}")
