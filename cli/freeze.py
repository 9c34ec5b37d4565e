"""`pitstop freeze`: stop all action of the service at the next safe point, or let it go on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands import CommandLine
from cli.connection import ask

app = CommandLine()


@app.command()
def freeze(
    why: Annotated[str, typer.Argument(help="why; it is shown to everybody whom it concerns")] = "",
    off: Annotated[bool, typer.Option("--off", help="let Pitstop act again")] = False,
    service: Annotated[str | None, typer.Option(help="the service's address (PITSTOP_SERVICE)")] = None,
    token_file: Annotated[Path | None, typer.Option(help="a file with an operator's token (PITSTOP_TOKEN_FILE)")] = None,
) -> None:
    """Stop all action at the next safe point. Diagnosis goes on; launchers do what they would do without Pitstop."""
    state = ask("POST", "/api/v1/freeze", service, token_file, {"on": not off, "why": why})
    typer.echo(f"frozen {state['why']}" if state["frozen"] else "not frozen: Pitstop acts again")
