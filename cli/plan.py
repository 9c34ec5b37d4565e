"""`pitstop plan`: who should run where, from a description of a cluster, and what else could be done."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Table

from cli.commands import CommandLine
from cli.main import UsageError
from rules.file_errors import cannot_read

if TYPE_CHECKING:
    from recovery.planning.proposal import Proposal

app = CommandLine()

SHOWN_NODES = 6


def read_state(path: str) -> object:
    """The document of a file or of standard input. Raises UsageError."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        document: object = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(cannot_read(path, error)) from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: no YAML: {' '.join(str(error).split())}") from None
    return document


def some(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - SHOWN_NODES} more" if len(nodes) > SHOWN_NODES else ""
    return (", ".join(nodes[:SHOWN_NODES]) + more) or "none"


def print_proposal(proposal: Proposal) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for trigger in proposal.triggers:
        console.print(f"if {trigger}")
    table = Table("task", "weight", "nodes now", "proposed", "WAF now", "WAF then", box=None, pad_edge=False)
    for task in proposal.after.placed:
        target = proposal.chosen.targets.get(task.name, 0)
        now = 0.0 if task.hit else task.worth(len(task.nodes))
        name = f"{task.name} (hit)" if task.hit else task.name
        table.add_row(name, f"{task.weight:g}", str(len(task.nodes)), str(target), f"{now:.3g}", f"{task.worth(target):.3g}")
    console.print(table)
    console.print(
        f"WAF (weighted FLOP/s): {proposal.waf_before:.4g} before, {proposal.waf_undone:.4g} with nothing done, "
        f"{proposal.waf_proposed:.4g} as proposed"
    )
    console.print(f"gained {proposal.gained:.3g} weighted FLOP over doing nothing; moving costs {proposal.cost:.3g}")
    for move in proposal.placement.moves:
        console.print(f"  {move.node}: {move.giver or 'idle'} -> {move.taker or 'idle'}")
    alternatives = Table("alternative", "mean WAF", "what it is", box=None, pad_edge=False)
    for item in proposal.alternatives:
        mark = "* " if item is proposal.chosen else "  "
        mean = f"{item.mean_waf:.4g}" if item.segments else "-"
        alternatives.add_row(mark + item.kind.value, mean, item.says + ("" if item.against is None else f" (no: {item.against})"))
    console.print(alternatives)
    console.print(f"why: {proposal.why}")


@app.command()
def plan(
    state: Annotated[str, typer.Argument(metavar="STATE.yaml", help="the cluster: nodes, tasks, rates; - is standard input")],
    what_if: Annotated[
        list[str] | None, typer.Option("--what-if", help="'node n17 lost', 'task a weight 2'; may be given again")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> None:
    """Say who should run where after what happened, or as things stand, and what else could be done."""
    document = read_state(state)
    try:
        from recovery.planning.cluster import parse_trigger
        from recovery.planning.document import parse_state, proposal_document
        from recovery.planning.proposal import propose
        from recovery.planning.tasks import PlanError
    except ModuleNotFoundError as missing:
        raise UsageError(f"planning needs {missing.name}: pip install 'pitstop[plan]'") from None
    try:
        proposal = propose(parse_state(document), [parse_trigger(text) for text in what_if or ()])
    except PlanError as problem:
        raise UsageError(str(problem)) from None
    if as_json:
        print(json.dumps(proposal_document(proposal)))
    else:
        print_proposal(proposal)
