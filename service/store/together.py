"""What many requests bring at once is written in one transaction: a durable commit takes as long for one as for a thousand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from anyio import CapacityLimiter, to_thread
from sqlalchemy.exc import OperationalError

__all__ = ["Together"]

Item = TypeVar("Item")

# The first of very many shall not wait for the last.
MOST_ITEMS = 500


class Together(Generic[Item]):
    """`write` stores some items in one transaction, in a thread, and raises where it cannot. `put` is called on an event loop."""

    def __init__(self, write: Callable[[Sequence[Item]], object]) -> None:
        self._write = write
        self._waiting: list[tuple[Item, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def put(self, item: Item) -> None:
        """Return when `item` is stored, with whatever else came meanwhile. Raises what `write` does of this item."""
        stored = asyncio.get_running_loop().create_future()
        self._waiting.append((item, stored))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        await stored

    async def _write_all(self) -> None:
        # However many requests wait in the threads that they share, this goes on.
        thread = CapacityLimiter(1)
        while self._waiting:
            taken, self._waiting = self._waiting[:MOST_ITEMS], self._waiting[MOST_ITEMS:]
            problems = await to_thread.run_sync(self._store, [item for item, _ in taken], limiter=thread)
            for (_, stored), problem in zip(taken, problems, strict=True):
                if stored.done():
                    continue
                if problem is None:
                    stored.set_result(None)
                else:
                    stored.set_exception(problem)
        self._writing = None

    def _store(self, items: Sequence[Item]) -> list[Exception | None]:
        """What keeps each of `items` from being stored."""
        try:
            self._write(items)
        except OperationalError as problem:
            # A database that is busy or away is so for all of them.
            return [problem] * len(items)
        except Exception as problem:
            if len(items) == 1:
                return [problem]
            # Nobody is to suffer for what another one brought.
            half = len(items) // 2
            return self._store(items[:half]) + self._store(items[half:])
        return [None] * len(items)
