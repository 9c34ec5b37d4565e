"""Work that a replica does again and again beside its requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from anyio import CapacityLimiter, to_thread
from sqlalchemy.exc import SQLAlchemyError

__all__ = ["repeat"]

log = logging.getLogger("pitstop.periodic")


async def repeat(work: Callable[[], object], seconds: float, stopping: asyncio.Event, trouble: str) -> None:
    """Run `work` in a thread, then wait `seconds`, until `stopping` is set.

    A database that does not answer is reported under the words of `trouble` and asked again; anything else ends the loop.
    """
    # However many requests wait for the database in the threads that they share, this goes on.
    thread = CapacityLimiter(1)
    while not stopping.is_set():
        try:
            await to_thread.run_sync(work, limiter=thread)
        except SQLAlchemyError as error:
            log.warning("%s: %s", trouble, str(error).splitlines()[0])
        try:
            await asyncio.wait_for(stopping.wait(), seconds)
        except TimeoutError:
            continue
