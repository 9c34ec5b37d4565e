"""The service's settings and database, for the commands that work on them; what cannot be used is told in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.main import UsageError

if TYPE_CHECKING:
    from service.store import Store

__all__ = ["DataDir", "Database", "store_of", "usable"]

Database = Annotated[str | None, typer.Option(help="sqlite:///PATH or postgresql://... (PITSTOP_DATABASE)")]
DataDir = Annotated[Path | None, typer.Option(help="where data lives (PITSTOP_DATA_DIR)")]


@contextmanager
def usable() -> Iterator[None]:
    """Raises UsageError where a setting, a token file, the rules or the database turn out not to be usable."""
    from sqlalchemy.exc import SQLAlchemyError

    from rules.pack import PackError
    from service.access import TokenError
    from service.settings import SettingsError
    from service.store import DatabaseError

    try:
        yield
    except (SettingsError, DatabaseError, TokenError, PackError) as error:
        raise UsageError(str(error)) from None
    except SQLAlchemyError as error:
        raise UsageError(f"the database cannot be used: {str(error).splitlines()[0]}") from None


@contextmanager
def store_of(database: str | None, data_dir: Path | None) -> Iterator[Store]:
    """The store that options and environment name, as it is. Raises UsageError, also for what fails while it is used."""
    from service.settings import load_settings
    from service.store import Store

    with usable():
        store = Store(load_settings(database=database, data_dir=data_dir).database_url)
        try:
            yield store
        finally:
            store.close()
