"""A copy of the database as it is at one moment, taken while the service writes."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from service.store import DatabaseError, Store

__all__ = ["back_up"]

# Between two steps the service may write.
PAGES_AT_ONCE = 4096


def back_up(store: Store, target: Path) -> int:
    """Write the SQLite database of `store` to `target`, whole or not at all; returns its bytes. Raises DatabaseError."""
    if not store.is_sqlite or store.url.database is None:
        raise DatabaseError("this database is PostgreSQL: use pg_dump --format=custom, and pg_restore to bring it back")
    if target.exists():
        raise DatabaseError(f"{target} exists: name a file that does not")
    written = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with closing(sqlite3.connect(store.url.database)) as source, closing(sqlite3.connect(written)) as copy:
            # Pages of a snapshot: a reader in WAL mode sees one state, however long it reads.
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            source.backup(copy, pages=PAGES_AT_ONCE)
            copy.execute("PRAGMA journal_mode=DELETE")
        with written.open("rb") as file:
            os.fsync(file.fileno())
        written.chmod(0o600)
        written.rename(target)
    except (sqlite3.Error, OSError) as error:
        raise DatabaseError(f"cannot write {target}: {error}") from None
    finally:
        written.unlink(missing_ok=True)
    return target.stat().st_size
