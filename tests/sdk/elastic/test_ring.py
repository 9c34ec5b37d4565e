"""The watch over a group, which runs beside the thread that leaves one group and forms the next."""

from __future__ import annotations

import datetime
import threading
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

from pitstop.elastic import group
from pitstop.elastic.group import Ring
from pitstop.elastic.membership import Formation
from tests.node.peer import wait_for


@pytest.mark.parametrize("members", [(0,), (0, 1)], ids=["one is lost", "one joins"])
def test_word_of_a_generation_that_was_formed_meanwhile_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: tuple[int, ...]
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=60))
    first, second = (Formation(generation, (0,), "127.0.0.1", store.port) for generation in (0, 1))
    looking, formed, acted = threading.Event(), threading.Event(), threading.Event()

    def look(_path: str, _rank: int) -> Formation:
        # The watch is taken off the processor between what it reads and what it does about it.
        if looking.is_set():
            acted.set()
        looking.set()
        assert formed.wait(60)
        return second._replace(members=members) if not acted.is_set() else second

    ring = Ring(0, "gloo", str(tmp_path / "formation"), lambda: 600.0)
    try:
        ring.form(first)
        monkeypatch.setattr(group, "read_formation", look)
        wait_for(looking.is_set)
        ring.form(second)
        formed.set()
        wait_for(acted.is_set)
        assert not ring.pending
        ring.sum(torch.ones(1))
    finally:
        formed.set()
        ring.close()
