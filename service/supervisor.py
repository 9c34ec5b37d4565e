"""The supervising duty: looks at every unfinished recovery when something happened, and on the clock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

import anyio
from sqlalchemy.exc import SQLAlchemyError

from service.recoveries import Recoveries

__all__ = ["Supervisor"]

log = logging.getLogger("pitstop.supervisor")

# Heartbeats and deadlines are looked at this often while a recovery is under way; while none is, those of other replicas are.
POLL_SECONDS = 0.2
IDLE_SECONDS = 1.0
# Of more recoveries than this each is looked at less often, so that looking stays cheap.
MANY = 20
RETRY_SECONDS = 1.0
CHORE_SECONDS = 1.0


class Supervisor:
    """Advances recoveries in worker threads, one thread per recovery at a time, never on the event loop."""

    def __init__(self, recoveries: Recoveries, chores: Sequence[Callable[[], bool]] = ()) -> None:
        """`chores`: what else has to be done now and then, in threads of their own; each says whether it changed something."""
        self._recoveries = recoveries
        self._chores = chores
        self._nudged = asyncio.Event()
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._closing = False

    def nudge(self) -> None:
        """Something was written in this process. Call from the event loop."""
        self._nudged.set()

    async def run(self) -> None:
        """Until `close`."""
        chores = [asyncio.create_task(self._repeat(chore)) for chore in self._chores]
        while not self._closing:
            try:
                found = await anyio.to_thread.run_sync(self._recoveries.unfinished)
            except SQLAlchemyError as error:
                log.warning("recoveries cannot be read: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for recovery in found:
                if recovery not in self._busy:
                    self._busy[recovery] = asyncio.create_task(self._advance(recovery))
            with contextlib.suppress(TimeoutError):
                pause = POLL_SECONDS * max(1.0, len(found) / MANY) if found else IDLE_SECONDS
                await asyncio.wait_for(self._nudged.wait(), pause)
            self._nudged.clear()
        await asyncio.gather(*self._busy.values(), *chores, return_exceptions=True)

    async def _repeat(self, chore: Callable[[], bool]) -> None:
        while not self._closing:
            try:
                if await anyio.to_thread.run_sync(chore):
                    # It may have begun a recovery.
                    self.nudge()
            except SQLAlchemyError as error:
                log.warning("a chore waits for the database: %s", error)
            except Exception:
                log.exception("a chore failed")
            await asyncio.sleep(CHORE_SECONDS)

    async def _advance(self, recovery: int) -> None:
        try:
            await anyio.to_thread.run_sync(self._recoveries.advance, recovery)
        except SQLAlchemyError as error:
            log.warning("recovery %s waits for the database: %s", recovery, error)
            await asyncio.sleep(RETRY_SECONDS)
        except Exception:
            log.exception("recovery %s could not be advanced", recovery)
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._busy.pop(recovery, None)

    def close(self) -> None:
        self._closing = True
        self._nudged.set()
