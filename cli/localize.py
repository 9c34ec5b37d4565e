"""`pitstop localize`: which node, link or rack is broken, by probes in pairs; on real nodes, or on simulated clusters."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from cli.main import UsageError
from recovery.localization.comparison import Experiment, compare
from recovery.localization.simulation import FaultKind

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

ALL = "all"


@app.command()
def localize(
    simulate: Annotated[bool, typer.Option("--simulate", help="on simulated clusters, with the error rates")] = False,
    nodes: Annotated[list[int] | None, typer.Option(min=2, max=4096, help="size of a simulated cluster; may repeat")] = None,
    fault: Annotated[list[str] | None, typer.Option(help="kind of fault, or all; may repeat")] = None,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="share that is broken, one at least")] = 0.05,
    draws: Annotated[int, typer.Option(min=1, help="simulated clusters of each kind and size")] = 100,
    seed: Annotated[int, typer.Option(help="the same seed gives the same clusters")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Find what is broken by probes in pairs, and say how sure that is."""
    if not simulate:
        raise UsageError("say --simulate")
    experiments = run_simulation(nodes or [64], kinds_of(fault or [FaultKind.HARD]), share, draws, seed)
    if as_json:
        print(json.dumps({"version": 1, "draws": draws, "seed": seed, "experiments": [document(each) for each in experiments]}))
    else:
        for experiment in experiments:
            print(described(experiment))


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
