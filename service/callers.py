"""Who holds which secret, as the store said lately: those that are in use are read again together."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from anyio import to_thread

from service.access import Principal, authenticate, holders
from service.periodic import repeat
from service.store import Clock, Store

__all__ = ["Callers"]

# A token that is revoked is taken for so long at most; no one is read more often than twice in that time.
VALID_SECONDS = 5.0
MOST_CALLERS = 20_000


@dataclass(slots=True)
class Caller:
    """`read_at`: on the monotonic clock. `asked`: since it was read."""

    principal: Principal
    read_at: float
    asked: bool = True


class Callers:
    """Holders of valid secrets. Its methods are called on the event loop, `refresh` in a thread."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, Caller] = {}
        self._stopping = asyncio.Event()

    def known(self, secret: str) -> Principal | None:
        """The holder of `secret`; None where that has to be read first."""
        caller = self._known.get(secret)
        if caller is None or time.monotonic() - caller.read_at > VALID_SECONDS:
            return None
        caller.asked = True
        return caller.principal

    async def holder(self, secret: str) -> Principal | None:
        """The holder of `secret`, None where no valid token has it. Raises SQLAlchemyError."""
        if (principal := self.known(secret)) is not None:
            return principal
        read_at = time.monotonic()
        principal = await to_thread.run_sync(authenticate, self._store, secret, self._clock())
        if principal is None:
            self._known.pop(secret, None)
            return None
        if len(self._known) >= MOST_CALLERS:
            self._known.clear()
        self._known[secret] = Caller(principal, read_at)
        return principal

    def refresh(self) -> None:
        """Read again whoever asked since the last time, and forget all others. Raises SQLAlchemyError: then they run out."""
        read_at = time.monotonic()
        asked = {secret: caller for secret, caller in list(self._known.items()) if caller.asked}
        found = holders(self._store, asked, self._clock()) if asked else {}
        fresh = {secret: Caller(principal, read_at, asked=False) for secret, principal in found.items()}
        # Whoever came meanwhile was read later than these.
        newer = {secret: caller for secret, caller in list(self._known.items()) if caller.read_at > read_at}
        self._known = fresh | newer

    async def run(self) -> None:
        """Refresh until `close`."""
        await repeat(self.refresh, VALID_SECONDS / 2, self._stopping, "tokens cannot be read")

    def close(self) -> None:
        self._stopping.set()
