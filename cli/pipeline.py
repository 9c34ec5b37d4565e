"""`pitstop pipeline`: schedules for a training pipeline with failed workers."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cli.main import UsageError
from cli.options import option_parser
from recovery.planning.pipeline.model import PipelineError, Routing, Schedule
from rules.file_errors import cannot_read, cannot_write

if TYPE_CHECKING:
    from recovery.planning.pipeline.throughput import Change

__all__ = ["app"]


def app(args: Sequence[str], prog_name: str) -> None:
    """Raises UsageError."""
    parser = option_parser(prog_name, "Schedules for a training pipeline with failed workers (ReCycle).")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = commands.add_parser("plan", help="the schedule for one set of failures")
    one.add_argument("specification", metavar="SPEC.json", help="the pipeline and its failures, or - for standard input")
    one.add_argument("--json", action="store_true", help="print the whole schedule as one JSON document")
    one.add_argument("--seconds", type=float, default=10.0, help="the most time to spend on proving a small case (10; 0: none)")
    one.add_argument("--svg", metavar="OUT.svg", type=Path, help="draw the schedule")
    one.add_argument("--trace", metavar="OUT.json", type=Path, help="write the schedule for chrome://tracing or Perfetto")
    one.set_defaults(act=plan_one)
    every = commands.add_parser("plans", help="schedules for every number of failures, computed ahead")
    every.add_argument(
        "specification", metavar="SPEC.json", help="the pipeline; failures: up to how many (else a quarter of the workers)"
    )
    every.add_argument("-o", "--output", metavar="DIR", type=Path, help="keep the plans there, to be looked up at a failure")
    every.add_argument("--json", action="store_true", help="print the period for each number of failures as one JSON document")
    every.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="threads (one a processor, at most 8)")
    every.set_defaults(act=plan_every)
    over_time = commands.add_parser("simulate", help="throughput over time under failures, by way of going on")
    over_time.add_argument("--shape", default="GPT-3 Medium", help="a model by name; any other name lists them")
    over_time.add_argument(
        "--every", type=float, default=1800.0, metavar="S", help="mean seconds between failures of a worker (1800)"
    )
    over_time.add_argument("--hours", type=float, default=6.0, help="how long (6)")
    over_time.add_argument("--repair-hours", type=float, help="how long a worker is away (for ever)")
    over_time.add_argument("--changes", metavar="FILE", help="in place of --every: [[second, workers more failed], ...] as JSON")
    over_time.add_argument("--seed", type=int, default=0)
    over_time.add_argument("--json", action="store_true", help="print means and steps as one JSON document")
    over_time.set_defaults(act=simulate_policies, specification="simulate")
    options = parser.parse_args(args)
    try:
        importlib.import_module("numba")
    except ImportError:
        raise UsageError("planning needs numba: pip install 'pitstop[plan]'") from None
    try:
        options.act(options)
    except PipelineError as error:
        raise UsageError(f"{options.specification}: {error}") from None
    except OSError as error:
        raise UsageError(cannot_write(error.filename, error)) from None


def read_document(path: str) -> object:
    """Raises UsageError."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(cannot_read(path, error)) from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: no JSON: {error}") from None


def plan_one(options: argparse.Namespace) -> None:
    from recovery.planning.pipeline.planner import plan
    from recovery.planning.pipeline.specification import answer, find_plan, parse_specification, without_failures

    specification = parse_specification(read_document(options.specification))
    found = find_plan(specification, options.seconds)
    failed = found.schedule.problem.failed
    fault_free = found if not failed else plan(without_failures(specification), options.seconds)
    document = answer(specification, found, fault_free)
    draw(found.schedule, options)
    if options.json:
        print(json.dumps(document))
        return
    proof = "optimal" if found.proven else f"no schedule is shorter than {found.bound}"
    print(f"period {found.period} ({proof}); without failures {fault_free.period}, 1F1B {document['one_f_one_b']}")
    if failed:
        print("failed: " + ", ".join(f"({replica}, {stage})" for replica, stage in sorted(failed)))
    for move in document.get("normalisation", {}).get("moves", []):
        print(f"normalisation: {tuple(move['worker'])} takes the place of {tuple(move['place'])}")


def draw(schedule: Schedule, options: argparse.Namespace) -> None:
    from recovery.planning.pipeline.drawing import chrome_trace, svg

    if options.svg is not None:
        options.svg.write_text(svg(schedule), "utf-8")
    if options.trace is not None:
        options.trace.write_text(json.dumps(chrome_trace(schedule)), "utf-8")


def plan_every(options: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from recovery.planning.pipeline.bounds import Bounds, one_f_one_b
    from recovery.planning.pipeline.plan_set import compute_plan_set, save_plan_set
    from recovery.planning.pipeline.specification import parse_specification

    specification = parse_specification(read_document(options.specification), Routing.FREE)
    problem = replace(specification.problem, failed=frozenset())
    most = specification.failures
    if most is None:
        most = min(problem.replicas * problem.stages // 4, Bounds(problem).most)
    began = time.monotonic()
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("failures planned for", total=most)
        plans = compute_plan_set(problem, most, options.workers, lambda done, _: bar.update(task, completed=done))
        bar.update(task, completed=most)
    if options.output is not None:
        save_plan_set(plans, options.output)
    seconds = time.monotonic() - began
    reference = one_f_one_b(problem)
    if options.json:
        rows = [
            {"failures": failures, "period": entry.period, "lower_bound": entry.bound, "plan": entry.plan}
            for failures, entry in enumerate(plans.entries)
        ]
        print(json.dumps({"seconds": seconds, "one_f_one_b": reference, "distinct": len(plans.schedules), "plans": rows}))
        return
    print(f"{len(plans.schedules)} plans serve 0 to {most} failures; {seconds:.1f} s; 1F1B without failures takes {reference}")
    for failures in sorted({0, 1, most} | {most * part // 4 for part in (1, 2, 3)}):
        entry = plans.entries[failures]
        print(
            f"{failures:>6} failures: period {entry.period}, at most {entry.period / entry.bound - 1:.1%} above the best there is"
        )


def read_changes(path: str) -> list[Change]:
    """Raises UsageError."""
    from recovery.planning.pipeline.throughput import Change

    document = read_document(path)
    try:
        if isinstance(document, list):
            return [Change(float(second), int(workers)) for second, workers in document]
    except (TypeError, ValueError):
        pass
    raise UsageError(f"{path}: [[second, workers more failed], ...] is needed; negative: repaired")


def simulate_policies(options: argparse.Namespace) -> None:
    from recovery.planning.pipeline.throughput import SHAPES, Policy, poisson_failures, simulate

    shape = next((shape for shape in SHAPES if shape.name == options.shape), None)
    if shape is None:
        raise UsageError(f"no shape {options.shape!r}; there are {', '.join(shape.name for shape in SHAPES)}")
    if min(options.every, options.hours) <= 0 or (options.repair_hours is not None and options.repair_hours <= 0):
        raise UsageError("--every, --hours and --repair-hours are above 0")
    until = options.hours * 3600
    if options.changes is not None:
        changes = read_changes(options.changes)
    else:
        repair = None if options.repair_hours is None else options.repair_hours * 3600
        changes = poisson_failures(options.every, until, repair, options.seed)
    runs = [simulate(shape, policy, changes, until) for policy in Policy]
    if options.json:
        rows = [
            {"policy": run.policy, "against_1f1b": run.against_1f1b, "against_own": run.against_own, "steps": run.steps}
            for run in runs
        ]
        print(json.dumps({"shape": shape.name, "failures": sum(max(0, change.workers) for change in changes), "policies": rows}))
        return
    print(f"{shape.name}, {shape.replicas} x {shape.stages}: mean throughput over {options.hours:g} h, without failures 1")
    for run in runs:
        print(f"{run.policy:<14} {run.against_1f1b:.3f} of plain 1F1B, {run.against_own:.3f} of its own")
