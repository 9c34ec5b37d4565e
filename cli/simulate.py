"""`pitstop simulate`: what ways of recovering would have kept of a cluster's worth, on faults that are drawn or recorded."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands import CommandLine
from cli.main import UsageError
from cli.plan import read_state
from rules.file_errors import cannot_write

app = CommandLine()


def print_report(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    first = report["policies"][0]["policy"]
    table = Table(
        "policy",
        "WAF kept",
        "lost to detection",
        "transition",
        "sub-healthy",
        "ETTR",
        "changes",
        f"{first} over it",
        box=None,
        pad_edge=False,
    )
    for row in report["policies"]:
        ratio, lost = row["ratio"], row["lost"]
        table.add_row(
            row["policy"],
            f"{row['of_its_own_without_failures']:.1%}",
            *(f"{lost.get(cause, 0.0):.2%}" for cause in ("detection", "transition", "sub_healthy")),
            f"{row['ettr']:.2%}",
            f"{row['changes']:.0f}",
            "" if ratio is None else f"{ratio['mean']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})",
        )
    console.print(
        f"{report['nodes']} nodes, {report['seconds'] / 86_400:g} days, {report['seeds']} seeds; shares are of each policy's own "
        "WAF without failures, ratios of accumulated WAF (95 % over the seeds, paired)"
    )
    console.print(table)


def keep_report(report: dict[str, Any], name: str, data_dir: Path | None) -> None:
    """Raises UsageError where it cannot be written."""
    from cli.run import data_directory

    path = data_directory(data_dir) / "simulations" / f"{name}.json"
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(report), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UsageError(cannot_write(path, error)) from None


@app.command()
def simulate(
    scenario: Annotated[str, typer.Argument(help="SCENARIO.yaml; - is standard input", metavar="SCENARIO.yaml")],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document, with WAF over time")] = False,
    keep: Annotated[str | None, typer.Option(help="keep it under this name for the report page of pitstop serve")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="the service's data directory (PITSTOP_DATA_DIR)")] = None,
) -> None:
    """Simulate policies on the same faults; docs/simulation.md describes the scenario."""
    from rich.console import Console
    from rich.progress import Progress

    from simulator.faults import TraceError
    from simulator.scenario import ScenarioError, read_scenario, run_scenario

    if keep is not None and not re.fullmatch(r"[\w .-]{1,100}", keep):
        raise UsageError(f"--keep {keep!r}: a name of letters, digits, spaces, dots, dashes and underscores is needed")
    folder = Path() if scenario == "-" else Path(scenario).parent
    try:
        read = read_scenario(read_state(scenario), folder)
    except (ScenarioError, TraceError) as error:
        raise UsageError(f"{scenario}: {error}") from None
    with Progress(console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal) as bar:
        task = bar.add_task("seeds", total=max(1, read.seeds))
        report = run_scenario(read, lambda: bar.advance(task))
    if keep is not None:
        keep_report(report, keep, data_dir)
    if as_json:
        print(json.dumps(report))
    else:
        print_report(report)
