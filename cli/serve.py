"""`pitstop serve`: the service in the foreground."""

from __future__ import annotations

import logging
import os
from typing import Annotated

import typer

from cli.commands import CommandLine
from cli.database import Database, DataDir, usable
from cli.main import UsageError

app = CommandLine()


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="address to listen on (PITSTOP_HOST; 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="port to listen on, 0 for any (PITSTOP_PORT; 8787)")] = None,
    database: Database = None,
    data_dir: DataDir = None,
) -> None:
    """Serve the API and the dashboard until stopped."""
    from service.server import ListenError, listen
    from service.server import serve as serve_until_stopped
    from service.settings import load_settings, misspelt

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("alembic", "httpx", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for name, meant in misspelt(os.environ).items():
        logging.getLogger("pitstop.service").warning("%s is no setting; is %s meant?", name, meant)
    with usable():
        settings = load_settings(host=host, port=port, database=database, data_dir=data_dir)
        try:
            listener = listen(settings.host, settings.port)
        except ListenError as error:
            raise UsageError(str(error)) from None
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        ready = f"pitstop: serving on http://{shown}:{listener.getsockname()[1]}, data in {settings.data_dir}"
        serve_until_stopped(settings, listener, lambda: typer.echo(ready, err=True))
