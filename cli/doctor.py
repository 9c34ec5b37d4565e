"""`pitstop doctor`: what the service sees, how far behind it is, and what is off, with why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands import CommandLine
from cli.connection import ask

app = CommandLine()

SILENT_SECONDS = 300.0
LAG_SECONDS = 60.0
CLOCK_SECONDS = 2.0
PAGE = 500


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice`: what to do, where it is not well."""

    part: str
    well: bool
    says: str
    advice: str = ""


def examine(
    ready: Mapping[str, Any], collectors: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """What /readyz, /api/v1/collectors and /api/v1/nodes tell, part by part."""
    for part, state in ready["checks"].items():
        yield Finding(part, state == "ok", state, "" if state == "ok" else "see the service's log")
    if not collectors:
        yield Finding("sources", False, "nobody has sent anything yet", "point an agent, Loki client or Alertmanager here")
    for source in collectors:
        name, silent, lag = source["name"], source["silent_seconds"], source["lag_seconds"] or 0.0
        says = f"{source['lines']} lines, {source['errors']} errors, last heard {silent:.0f} s ago, lag {lag:.0f} s"
        if silent > SILENT_SECONDS:
            yield Finding(name, False, says, "is its sender running, and can it reach the service?")
        elif lag > LAG_SECONDS:
            yield Finding(name, False, says, "it is behind, or its clock is: compare its clock, look at its queue")
        elif source["last_error"]:
            yield Finding(name, False, says, f"its last error: {source['last_error']}")
        else:
            yield Finding(name, True, says)
    for node in nodes:
        offset = node["clock_offset_seconds"] or 0.0
        says = f"lease until {node['lease']['until']}, clock {offset:+.1f} s"
        if node["lease"]["silent"]:
            yield Finding(f"node {node['node']}", False, says, "its agent is silent: is it running?")
        elif abs(offset) > CLOCK_SECONDS:
            yield Finding(f"node {node['node']}", False, says, "its clock is off: start or repair its time service")
        else:
            yield Finding(f"node {node['node']}", True, says)


@app.command()
def doctor(
    service: Annotated[str | None, typer.Option(help="the service's address (PITSTOP_SERVICE)")] = None,
    token_file: Annotated[Path | None, typer.Option(help="a file with a viewer's token (PITSTOP_TOKEN_FILE)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> None:
    """Look at the service, its sources and its nodes, and say what is off and why."""
    ready = ask("GET", "/readyz", service, token_file, accepted=(503,))
    collectors = ask("GET", f"/api/v1/collectors?limit={PAGE}", service, token_file)
    nodes = ask("GET", f"/api/v1/nodes?limit={PAGE}", service, token_file)
    findings = list(examine(ready, collectors["items"], nodes["items"]))
    if as_json:
        print(
            json.dumps({"well": all(finding.well for finding in findings), "findings": [asdict(finding) for finding in findings]})
        )
        return
    for finding in findings:
        typer.echo(
            f"{'ok ' if finding.well else 'OFF'}  {finding.part}: {finding.says}"
            + (f"; {finding.advice}" if finding.advice else "")
        )
    for what, page in (("sources", collectors), ("nodes", nodes)):
        if page["total"] > PAGE:
            typer.echo(f"     of {page['total']} {what} the first {PAGE} were looked at")
