"""What several threads bring at once is written together, and each hears of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.store.together import Together


def test_what_comes_while_another_writes_is_written_together_and_only_what_is_bad_fails() -> None:
    written: list[list[int]] = []
    begun, go_on = threading.Event(), threading.Event()

    def write(items: Sequence[int]) -> None:
        begun.set()
        assert go_on.wait(30)
        if 13 in items:
            raise ValueError("13 cannot be stored")
        written.append(sorted(items))

    together = Together(write)
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(together.put, 0)
        assert begun.wait(30)
        others = [threads.submit(together.put, item) for item in (1, 2, 3)]
        while len(together._waiting) < 3:
            time.sleep(0.001)
        go_on.set()
        for stored in (first, *others):
            stored.result()
        assert written == [[0], [1, 2, 3]]
        begun.clear()
        go_on.clear()
        first = threads.submit(together.put, 4)
        assert begun.wait(30)
        others = [threads.submit(together.put, item) for item in (5, 13, 6)]
        while len(together._waiting) < 3:
            time.sleep(0.001)
        go_on.set()
        with pytest.raises(ValueError, match="13"):
            others[1].result()
        others[0].result(), others[2].result()
    assert sorted(written[2:]) == [[4], [5], [6]]
