"""`pitstop backup`: a copy of the service's database, taken while the service runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands import CommandLine
from cli.main import UsageError

app = CommandLine()


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="the file to write; it must not exist")],
    database: Annotated[str | None, typer.Option(help="sqlite:///PATH (PITSTOP_DATABASE)")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where data lives (PITSTOP_DATA_DIR)")] = None,
) -> None:
    """Copy a SQLite database as it is at one moment. To restore, stop the service and put the file in the database's place."""
    from service.backup import back_up
    from service.settings import SettingsError, load_settings
    from service.store import DatabaseError, Store

    try:
        size = back_up(Store(load_settings(database=database, data_dir=data_dir).database_url), target)
    except (SettingsError, DatabaseError) as error:
        raise UsageError(str(error)) from None
    typer.echo(f"{target}: {size} bytes")
