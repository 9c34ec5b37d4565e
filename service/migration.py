"""Bring a database to the schema of this version: one Alembic chain, run under a lock so that replicas may start together."""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import text

from service.store import DatabaseError, Store

__all__ = ["migrate", "pending_revisions"]

# Inside the wheel the chain lies in service/migrations; in the repository that is a link to /migrations.
log = logging.getLogger("pitstop.service")

SCRIPTS = Path(__file__).parent / "migrations"


def configuration() -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    return config


def migrate(store: Store) -> tuple[str | None, str]:
    """Upgrade to the newest revision; returns (revision before, after). Raises DatabaseError where that is impossible.

    A database that a newer version has upgraded is left as it is: migrations only add, so that replicas of the version before
    work beside those of the next, and start again.
    """
    config = configuration()
    head = ScriptDirectory.from_config(config).get_current_head()
    if head is None:
        raise DatabaseError(f"{SCRIPTS} holds no migrations: reinstall pitstop")
    with store.engine.begin() as connection:
        if not store.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(8787, 0)"))
        before = MigrationContext.configure(connection).get_current_revision()
        if before is not None and is_newer(before, head):
            log.warning("the database is at revision %s, newer than this version's %s: upgrade this replica too", before, head)
            return before, before
        if before != head:
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except CommandError as error:
                raise DatabaseError(f"the database is at revision {before}, which this version does not know ({error})") from None
    return before, head


def is_newer(revision: str, head: str) -> bool:
    """Revisions are numbers that rise."""
    return revision.isdecimal() and int(revision) > int(head)


def pending_revisions(store: Store) -> list[str]:
    """Revisions that `migrate` would still apply, oldest first."""
    scripts = ScriptDirectory.from_config(configuration())
    with store.engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and is_newer(current, scripts.get_current_head() or "0"):
        return []
    return [script.revision for script in scripts.iterate_revisions("head", current or "base")][::-1]
