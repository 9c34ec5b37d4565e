"""What several threads bring at once is written in one transaction: a durable commit takes as long for one as for a hundred."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["Together"]

Item = TypeVar("Item")


class Together(Generic[Item]):
    """`write` stores some items in one transaction, and raises where it cannot."""

    def __init__(self, write: Callable[[Sequence[Item]], None]) -> None:
        self._write = write
        self._waiting: list[tuple[Item, Future[None]]] = []
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def put(self, item: Item) -> None:
        """Return when `item` is stored, with whatever else came meanwhile. Raises what `write` does of this item."""
        stored: Future[None] = Future()
        with self._lock:
            self._waiting.append((item, stored))
        with self._writing:
            with self._lock:
                taken, self._waiting = self._waiting, []
            if taken:
                self._store(taken)
        stored.result()

    def _store(self, taken: Sequence[tuple[Item, Future[None]]]) -> None:
        try:
            self._write([item for item, _ in taken])
        except Exception as problem:
            if len(taken) == 1:
                taken[0][1].set_exception(problem)
                return
            # Nobody is to suffer for what another one brought.
            for one in taken:
                self._store([one])
            return
        for _, stored in taken:
            stored.set_result(None)
