"""`pitstop localize`: which node, link or rack is broken, by probes in pairs; on real nodes, or on simulated clusters."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands import CommandLine
from cli.connection import ask
from cli.main import UsageError, fail
from recovery.localization.comparison import Experiment, compare
from recovery.localization.simulation import FaultKind

if TYPE_CHECKING:
    from rich.status import Status

app = CommandLine()

ALL = "all"
# How much longer than the limit the service is waited for.
OVERTIME_SECONDS = 30.0
MOST_LINES = 60


@app.command()
def localize(
    node: Annotated[list[str] | None, typer.Argument(help="idle nodes to look at")] = None,
    job: Annotated[str | None, typer.Option(help="the nodes of this job, whose ranks are stopped first")] = None,
    spare: Annotated[list[str] | None, typer.Option(help="a partner beside them, instead of the free spares; may repeat")] = None,
    limit: Annotated[float, typer.Option(min=5.0, max=600.0, help="seconds after which what is open stays undecided")] = 60.0,
    service: Annotated[str | None, typer.Option(help="the service's address (PITSTOP_SERVICE)")] = None,
    token_file: Annotated[Path | None, typer.Option(help="a file with an operator's token (PITSTOP_TOKEN_FILE)")] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="on simulated clusters instead, with the error rates")] = False,
    nodes: Annotated[list[int] | None, typer.Option(min=2, max=4096, help="size of a simulated cluster; may repeat")] = None,
    fault: Annotated[list[str] | None, typer.Option(help="kind of fault, or all; may repeat")] = None,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="share that is broken, one at least")] = 0.05,
    draws: Annotated[int, typer.Option(min=1, help="simulated clusters of each kind and size")] = 100,
    seed: Annotated[int, typer.Option(help="the same seed gives the same clusters")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Find what is broken by probes in pairs: among nodes whose agents the service knows, or in a simulation."""
    if not simulate:
        if (job is None) == (not node):
            raise UsageError("name idle nodes, or --job NAME, or --simulate")
        wanted: dict[str, Any] = {"seconds": limit, **({"job": job} if job else {"nodes": node})}
        found = on_real_nodes(wanted | ({"spares": spare} if spare else {}), limit, service, token_file)
        print(json.dumps(found) if as_json else verdict_text(found))
        return
    if node or job:
        raise UsageError("--simulate looks at no real nodes: say --nodes N for the size of the simulated cluster")
    experiments = run_simulation(nodes or [64], kinds_of(fault or [FaultKind.HARD]), share, draws, seed)
    if as_json:
        print(json.dumps({"version": 1, "draws": draws, "seed": seed, "experiments": [document(each) for each in experiments]}))
    else:
        for experiment in experiments:
            print(described(experiment))


def on_real_nodes(wanted: dict[str, Any], limit: float, service: str | None, token_file: Path | None) -> dict[str, Any]:
    """Ask the service, and wait until it is done; the localisation's document."""
    found = ask("POST", "/api/v1/localizations", service, token_file, wanted)
    deadline = time.monotonic() + limit + OVERTIME_SECONDS
    with waiting(found) as shown:
        while found["state"] != "done":
            if time.monotonic() > deadline:
                fail(f"localisation {found['id']} is not done after {limit:.0f} s: is the service busy?", 1)
            time.sleep(0.3)
            found = ask("GET", f"/api/v1/localizations/{found['id']}", service, token_file)
            shown.update(f"{len(found['probes'])} probes asked for")
    return found


def waiting(found: dict[str, Any]) -> Status:
    from rich.console import Console

    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    return console.status(f"{len(found['nodes'])} nodes")


def verdict_text(found: dict[str, Any]) -> str:
    """The verdict, then every probe that did not pass."""
    verdict = found["verdict"] or {"nodes": {}, "links": [], "groups": [], "isolate": []}
    lines = [found["summary"], f"{len(found['probes'])} probes on {found['backend']} in {found['seconds']:.1f} s", ""]
    lines += [f"group {item['group']}: {item['verdict']}: {item['why']}" for item in verdict["groups"]]
    lines += [f"link {' - '.join(item['ends'])}: {item['verdict']}: {item['why']}" for item in verdict["links"]]
    lines += [f"{name}: {item['verdict']}: {item['why']}" for name, item in verdict["nodes"].items()]
    bad = [probe for probe in found["probes"] if probe["outcome"] != "passed"]
    if bad:
        lines += ["", "batch round nodes: result"]
    for probe in bad[:MOST_LINES]:
        seconds = "" if probe["seconds"] is None else f" after {probe['seconds']:.2f} s"
        said = f" ({probe['error']})" if probe["error"] else ""
        lines.append(f"{probe['turn']:5} {probe['round']:5} {' - '.join(probe['members'])}: {probe['outcome']}{seconds}{said}")
    if len(bad) > MOST_LINES:
        lines.append(f"and {len(bad) - MOST_LINES} more; --json has all")
    return "\n".join(lines)


def kinds_of(names: list[str]) -> list[FaultKind]:
    """Raises UsageError for a name that is no kind of fault."""
    if ALL in names:
        return list(FaultKind)
    try:
        return [FaultKind(name) for name in names]
    except ValueError as error:
        raise UsageError(f"{error}: --fault takes {ALL}, {', '.join(FaultKind)}") from None


def run_simulation(sizes: list[int], kinds: list[FaultKind], share: float, draws: int, seed: int) -> list[Experiment]:
    from rich.console import Console
    from rich.progress import track

    plan = [(size, kind) for size in sizes for kind in kinds]
    shown = track(plan, "simulating", console=Console(stderr=True), disable=not sys.stderr.isatty())
    return [compare(kind, size, share, draws, seed) for size, kind in shown]


def document(experiment: Experiment) -> dict[str, Any]:
    return {
        "fault": experiment.kind.value,
        "nodes": experiment.nodes,
        "share": experiment.share,
        "rules": {
            name: {
                "precision": tally.precision,
                "precision_interval": tally.precision_interval,
                "recall": tally.recall,
                "recall_interval": tally.recall_interval,
                "exact": tally.exact / tally.draws,
            }
            for name, tally in experiment.tallies.items()
        },
        "batches": mean(experiment.turns),
        "probes": mean(experiment.probes),
        "seconds": mean(experiment.seconds),
        "seconds_longest": max(experiment.seconds),
    }


def mean(values: list[int] | list[float]) -> float:
    return sum(values) / len(values)


def described(experiment: Experiment) -> str:
    took = f"{mean(experiment.turns):.1f} batches, {mean(experiment.probes):.0f} probes, {mean(experiment.seconds):.1f} s"
    kind, size, draws = experiment.kind.value, experiment.nodes, len(experiment.turns)
    lines = [f"{kind}, {size} nodes, {experiment.share:.0%} broken, {draws} draws: {took}"]
    for name, tally in experiment.tallies.items():
        (low, high), (least, most) = tally.precision_interval, tally.recall_interval
        lines.append(
            f"  {name:<18} precision {tally.precision:.3f} [{low:.3f}, {high:.3f}]  recall {tally.recall:.3f} "
            f"[{least:.3f}, {most:.3f}]  all right in {tally.exact / tally.draws:.1%} of draws"
        )
    return "\n".join(lines)
