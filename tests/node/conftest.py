from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.peer import Peer, Runs


@pytest.fixture
def peer() -> Iterator[Peer]:
    server = Peer()
    server.up()
    yield server
    server.down()


@pytest.fixture
def runs(tmp_path: Path, peer: Peer) -> Iterator[Runs]:
    launcher = Runs(tmp_path, f"http://127.0.0.1:{peer.port}")
    yield launcher
    launcher.end()
