"""`pitstop migrate`: bring the database to this version's schema."""

from __future__ import annotations

import typer

from cli.commands import CommandLine
from cli.database import Database, DataDir, store_of

app = CommandLine()


@app.command()
def migrate(database: Database = None, data_dir: DataDir = None) -> None:
    """Apply the migrations that are missing; does nothing where there are none."""
    from service.migration import migrate as upgrade

    with store_of(database, data_dir) as store:
        before, after = upgrade(store)
    typer.echo(f"already at revision {after}" if before == after else f"from revision {before or 'none'} to {after}")
