"""`pitstop migrate`: bring the database to this version's schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands import CommandLine
from cli.main import UsageError

app = CommandLine()


@app.command()
def migrate(
    database: Annotated[str | None, typer.Option(help="sqlite:///PATH or postgresql://... (PITSTOP_DATABASE)")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where data lives (PITSTOP_DATA_DIR)")] = None,
) -> None:
    """Apply the migrations that are missing; does nothing where there are none."""
    from sqlalchemy.exc import SQLAlchemyError

    from service.migration import migrate as upgrade
    from service.settings import SettingsError, load_settings
    from service.store import DatabaseError, Store

    try:
        store = Store(load_settings(database=database, data_dir=data_dir).database_url)
        before, after = upgrade(store)
    except (SettingsError, DatabaseError) as error:
        raise UsageError(str(error)) from None
    except SQLAlchemyError as error:
        raise UsageError(f"the database cannot be used: {str(error).splitlines()[0]}") from None
    typer.echo(f"already at revision {after}" if before == after else f"from revision {before or 'none'} to {after}")
