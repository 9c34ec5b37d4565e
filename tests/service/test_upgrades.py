"""Rolling upgrades: what a migration finds stays as it was, and a replica of the version before works on what it made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from fastapi.testclient import TestClient
from sqlalchemy import Connection, inspect, text

from service.app import create_app
from service.ingest.matching import MatcherPool
from service.migration import configuration, migrate
from service.settings import Settings
from service.store import Store
from tests.service.postgres import postgres


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.acceptance)])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        yield Store(f"sqlite:///{tmp_path / 'empty.sqlite'}")
        return
    with postgres() as url:
        store = Store(url)
        yield store
        store.close()


def schema_of(connection: Connection) -> dict[tuple[str, str], dict[str, Any]]:
    """Every column by its table and name."""
    found = inspect(connection)
    return {(table, column["name"]): dict(column) for table in found.get_table_names() for column in found.get_columns(table)}


def test_migrations_only_add_what_the_version_before_can_leave_alone(empty: Store) -> None:
    config = configuration()
    scripts = ScriptDirectory.from_config(config)
    revisions = [script.revision for script in scripts.iterate_revisions("head", "base")][::-1]
    before: dict[tuple[str, str], dict[str, Any]] = {}
    with empty.engine.begin() as connection:
        config.attributes["connection"] = connection
        for revision in revisions:
            command.upgrade(config, revision)
            after = schema_of(connection)
            for place, column in before.items():
                assert place in after, f"{revision} takes {place} away"
                now = after[place]
                types = (str(column["type"]), str(now["type"]))
                assert types[0] == types[1] or types == ("INTEGER", "BIGINT"), f"{revision} changes {place}"
                assert now["nullable"] or not column["nullable"], f"{revision} asks more of {place}"
            tables = {table for table, _ in before}
            for place in after.keys() - before.keys():
                if place[0] in tables:
                    column = after[place]
                    assert column["nullable"] or column["default"] is not None, f"{revision}: {place} must be told"
            before = after


def test_a_replica_of_the_version_before_starts_on_a_newer_schema(settings: Settings, pool: MatcherPool) -> None:
    store = Store(settings.database_url)
    migrate(store)
    with store.engine.begin() as connection:
        connection.execute(text("ALTER TABLE jobs ADD COLUMN novel TEXT"))
        connection.execute(text("CREATE TABLE novelties (id INTEGER PRIMARY KEY)"))
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    store.close()
    application = create_app(settings, shared_pool=pool)
    with TestClient(application, base_url="http://localhost", client=("127.0.0.1", 50000)) as client:
        assert client.get("/readyz").json()["checks"]["database"] == "ok"
        assert client.post("/api/v1/jobs", json={"job": "train"}).status_code == 201
        assert client.post("/api/v1/logs", content=b'{"job": "train", "line": "odd"}').json()["kept"] == 1
    assert migrate(store) == ("9999", "9999")
