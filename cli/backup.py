"""`pitstop backup`: a copy of the service's database, taken while the service runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands import CommandLine
from cli.database import Database, DataDir, store_of

app = CommandLine()


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="the file to write; it must not exist")],
    database: Database = None,
    data_dir: DataDir = None,
) -> None:
    """Copy a SQLite database as it is at one moment. To restore, stop the service and put the file in the database's place."""
    from service.backup import back_up

    with store_of(database, data_dir) as store:
        size = back_up(store, target)
    typer.echo(f"{target}: {size} bytes")
