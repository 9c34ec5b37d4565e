"""Waiting for events: one poller of the events table per process wakes everybody who waits in it."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import anyio
from sqlalchemy.exc import SQLAlchemyError

from service.store import Store
from service.store.events import last_event_id

__all__ = ["EventWatch"]

log = logging.getLogger("pitstop.service")

# Of this process every event is told at once; those of other replicas, which only PostgreSQL allows, are looked for.
POLL_SECONDS = 0.2
POLL_ALONE_SECONDS = 2.0


class EventWatch:
    """Knows the newest event id: of this process at once, of other replicas within POLL_SECONDS."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = asyncio.Condition()
        self._nudged = asyncio.Event()
        self._waiting = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poll_seconds = POLL_ALONE_SECONDS if store.is_sqlite else POLL_SECONDS
        self.last_id = 0
        self.closing = False
        store.on_published = self.nudge

    async def run(self) -> None:
        """Poll until closed. A database that does not answer is asked again."""
        self._loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._nudged.wait(), self._poll_seconds)
            self._nudged.clear()
            if self.closing:
                await self._wake()
                return
            if not self._waiting:
                continue
            try:
                newest = await anyio.to_thread.run_sync(self._read)
            except SQLAlchemyError as error:
                log.warning("events cannot be read: %s", error)
                continue
            if newest > self.last_id:
                self.last_id = newest
                await self._wake()

    def _read(self) -> int:
        with self._store.reading() as session:
            return last_event_id(session)

    def nudge(self) -> None:
        """Something was published in this process. Safe to call from any thread or signal handler."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._nudged.set)

    def close(self) -> None:
        """Let everybody who waits go home. Safe to call from any thread or signal handler."""
        self.closing = True
        self.nudge()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def wait_after(self, event_id: int, timeout_seconds: float) -> bool:
        """Until there is an event newer than `event_id`, at most `timeout_seconds`. False: none came (or the service ends)."""
        self._waiting += 1
        self._nudged.set()
        try:
            async with asyncio.timeout(timeout_seconds):
                async with self._changed:
                    await self._changed.wait_for(lambda: self.closing or self.last_id > event_id)
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
        return not self.closing
