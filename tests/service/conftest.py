"""A store and a service of their own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.ingest.matching import MatcherPool
from service.migration import migrate
from service.settings import Settings, load_settings
from service.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path / 'store' / 'pitstop.sqlite'}")
    migrate(store)
    yield store
    store.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(data_dir=tmp_path / "data")


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
