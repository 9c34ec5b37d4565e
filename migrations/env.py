"""Run migrations on the connection that service/migration.py hands over, or on PITSTOP_DATABASE under the alembic command."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import Connection

from service.store import Base, Store


def run(connection: Connection) -> None:
    # Batch mode: SQLite cannot alter most things in place.
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


handed_over: Connection | None = context.config.attributes.get("connection")
if handed_over is not None:
    run(handed_over)
else:
    store = Store(os.environ["PITSTOP_DATABASE"])
    with store.engine.begin() as own:
        run(own)
    store.close()
