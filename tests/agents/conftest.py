"""The real embedding model, loaded once."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def embedder() -> object:
    try:
        from agents.embedding import EmbeddingError, MiniLM

        return MiniLM()
    except (ImportError, EmbeddingError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"memory is not installed: {error}")
