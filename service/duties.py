"""Work of which there is one in a cluster of replicas: whoever holds the lease row does it, and /readyz names the holder."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from anyio import to_thread
from sqlalchemy.exc import SQLAlchemyError

from service.periodic import repeat
from service.store import Clock, Store
from service.store.access import Switch
from service.store.database import hold_lock, timestamp

__all__ = ["Duties", "Duty"]

log = logging.getLogger("pitstop.service")

LEASE = "duties"
LEASE_SECONDS = 15.0
# The lease is written again when it has no more than this left: each write costs an fsync.
RENEW_SECONDS = 10.0
TICK_SECONDS = 2.0


@dataclass(slots=True)
class Duty:
    """`work` runs in a thread, at most once every `every_seconds`."""

    name: str
    every_seconds: float
    work: Callable[[], None]
    due_at: float = 0.0


@dataclass(slots=True)
class Duties:
    """Takes the lease or renews it in time, and does what is due while it is held."""

    store: Store
    clock: Clock
    duties: Sequence[Duty]
    name: str = field(default_factory=lambda: f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}")
    held: bool = field(default=False, init=False)
    _held_until: float = field(default=0.0, init=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until `close`."""
        await repeat(self.tick, TICK_SECONDS, self._stopping, "duties cannot be looked after")
        await to_thread.run_sync(self._give_up)

    def close(self) -> None:
        self._stopping.set()

    def tick(self) -> None:
        """One round. A duty that fails is reported and tried again when it is next due."""
        try:
            self.held = self._still_held() or self._hold()
        except SQLAlchemyError as error:
            self.held = False
            log.warning("the lease of duties cannot be renewed: %s", str(error).splitlines()[0])
            return
        now = self.clock()
        for duty in self.duties if self.held else ():
            if now >= duty.due_at:
                duty.due_at = now + duty.every_seconds
                try:
                    duty.work()
                except Exception:
                    log.exception("the duty %s failed", duty.name)

    def _still_held(self) -> bool:
        """Whether the lease that this replica wrote last is good for a while; not where its clock went backwards meanwhile."""
        return self.held and RENEW_SECONDS < self._held_until - self.clock() <= LEASE_SECONDS

    def _hold(self) -> bool:
        with self.store.writing() as session:
            hold_lock(session, LEASE)
            now = self.clock()
            row = session.get(Switch, LEASE)
            self._held_until = now + LEASE_SECONDS
            if row is None:
                session.add(Switch(name=LEASE, value={"until": self._held_until}, set_by=self.name, set_at=now))
                return True
            if row.set_by != self.name and now < row.value["until"] <= now + 2 * LEASE_SECONDS:
                return False
            row.value, row.set_by, row.set_at = {"until": self._held_until}, self.name, now
            return True

    def _give_up(self) -> None:
        try:
            with self.store.writing() as session:
                row = session.get(Switch, LEASE)
                if row is not None and row.set_by == self.name:
                    session.delete(row)
        except SQLAlchemyError as error:
            log.warning("the lease of duties runs out by itself: %s", str(error).splitlines()[0])

    def report(self) -> dict[str, object]:
        """Who holds the duties, and until when at least."""
        with self.store.reading() as session:
            row = session.get(Switch, LEASE)
            if row is None:
                return {"holder": None, "until": None, "here": False}
            return {"holder": row.set_by, "until": timestamp(row.value["until"]), "here": row.set_by == self.name}
