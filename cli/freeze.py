"""`pitstop freeze`: stop all action of the service at the next safe point, or let it go on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from cli.main import UsageError, fail

app = typer.Typer(add_completion=False)


@app.command()
def freeze(
    why: Annotated[str, typer.Argument(help="why; it is shown to everybody whom it concerns")] = "",
    off: Annotated[bool, typer.Option("--off", help="let Pitstop act again")] = False,
    service: Annotated[str | None, typer.Option(help="the service's address (PITSTOP_SERVICE)")] = None,
    token_file: Annotated[Path | None, typer.Option(help="a file with an operator's token (PITSTOP_TOKEN_FILE)")] = None,
) -> None:
    """Stop all action at the next safe point. Diagnosis goes on; launchers do what they would do without Pitstop."""
    import httpx2

    address = (service or os.environ.get("PITSTOP_SERVICE") or "http://127.0.0.1:8787").rstrip("/")
    path = token_file or (Path(os.environ["PITSTOP_TOKEN_FILE"]) if os.environ.get("PITSTOP_TOKEN_FILE") else None)
    headers = {}
    if path is not None:
        try:
            headers["Authorization"] = f"Bearer {path.read_text(encoding='utf-8').strip()}"
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the token file {path}: {error}") from None
    try:
        answer = httpx2.post(f"{address}/api/v1/freeze", json={"on": not off, "why": why}, headers=headers, timeout=10)
    except httpx2.HTTPError as error:
        fail(f"{address} does not answer ({error}): is the service running?", 1)
    if not answer.is_success:
        try:
            detail = str(answer.json().get("detail"))
        except (json.JSONDecodeError, AttributeError):
            detail = answer.text[:200]
        fail(f"{address} refused: {detail}", 1)
    state = answer.json()
    typer.echo(f"frozen {state['why']}" if state["frozen"] else "not frozen: Pitstop acts again")
