"""The real embedding model, loaded once; and a model endpoint whose answers a test writes down."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.agents.scripted_endpoint import ScriptedEndpoint


@pytest.fixture(scope="session")
def embedder() -> object:
    try:
        from agents.embedding import EmbeddingError, MiniLM

        return MiniLM()
    except (ImportError, EmbeddingError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"memory is not installed: {error}")


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    server = ScriptedEndpoint()
    yield server
    server.close()
