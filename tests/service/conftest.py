"""A store and a service of their own for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.ingest.matching import MatcherPool
from service.migration import migrate
from service.settings import Settings, load_settings
from service.store import Store


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of this version's schema: going through all migrations takes longer than most tests."""
    file = tmp_path_factory.mktemp("empty") / "pitstop.sqlite"
    store = Store(f"sqlite:///{file}")
    migrate(store)
    store.close()
    return file


@pytest.fixture
def store(tmp_path: Path, empty_database: Path) -> Iterator[Store]:
    folder = tmp_path / "store"
    folder.mkdir()
    store = Store(f"sqlite:///{shutil.copy(empty_database, folder)}")
    yield store
    store.close()


@pytest.fixture
def settings(tmp_path: Path, empty_database: Path) -> Settings:
    """Of a service whose database is there and empty."""
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(empty_database, folder)
    return load_settings(data_dir=folder)


@pytest.fixture(scope="session")
def pool() -> Iterator[MatcherPool]:
    """One matcher process for all tests: starting it takes longer than most of them."""
    pool = MatcherPool(1, 128 * 1024 * 1024)
    yield pool
    pool.close()


@pytest.fixture
def client(settings: Settings, pool: MatcherPool) -> Iterator[TestClient]:
    """A caller on this machine without a token."""
    with TestClient(create_app(settings, shared_pool=pool), base_url="http://localhost", client=("127.0.0.1", 50000)) as client:
        yield client


@pytest.fixture
def admin(client: TestClient, settings: Settings) -> dict[str, str]:
    """The Authorization header of the admin token that the first start wrote."""
    return {"Authorization": f"Bearer {(settings.data_dir / 'admin.token').read_text().strip()}"}
