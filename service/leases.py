"""Silent nodes: judges the leases four times a second, says once when a node falls silent and when it is heard again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from detectors.lease import Judge, Lease, LeaseReview, next_look, review_leases
from service.periodic import repeat
from service.store import Clock, Store
from service.store.events import publish_event

__all__ = ["LeaseStore", "LeaseWatch", "LeasesUnknown"]

log = logging.getLogger("pitstop.leases")

LOOK_SECONDS = 0.25


class LeasesUnknown(Exception):
    """Who was heard when cannot be read just now."""


class LeaseStore(Protocol):
    """Where renewals are kept: the database (service/database_leases.py), or etcd (service/etcd_leases.py)."""

    def leases(self, now: float) -> Sequence[Lease]:
        """Every lease there is, as of `now`. Raises LeasesUnknown, SQLAlchemyError."""
        ...


@dataclass(slots=True)
class LeaseWatch:
    """One replica's judge; only the holder of the duties speaks. Silence is a signal and never by itself a reason to act."""

    store: Store
    clock: Clock
    kept: LeaseStore
    is_holder: Callable[[], bool]
    _judge: Judge | None = None
    _silent: set[str] = field(default_factory=set)
    _review: LeaseReview = field(default_factory=LeaseReview)
    _unknown: str | None = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until `close`."""
        await repeat(self.look, LOOK_SECONDS, self._stopping, "leases cannot be read")

    def close(self) -> None:
        self._stopping.set()

    def look(self) -> LeaseReview:
        """One look at all leases. A node that is judged silent, or heard again, is published once."""
        now = self.clock()
        try:
            leases = self.kept.leases(now)
        except LeasesUnknown as problem:
            # Nobody is judged, and afterwards everybody has a full time to live again.
            self._judge, self._unknown, self._review = None, str(problem), LeaseReview(looked_at=now)
            return self._review
        self._unknown = None
        self._judge = Judge(now, now) if self._judge is None else next_look(self._judge, now)
        self._review = review_leases(leases, self._judge)
        silent = {item.node: item for item in self._review.silent}
        unjudged = {item.node for item in self._review.unjudged}
        fallen, heard = silent.keys() - self._silent, self._silent - silent.keys() - unjudged
        if (fallen or heard) and self.is_holder():
            with self.store.writing() as session:
                for node in sorted(fallen):
                    publish_event(session, "node.silent", node, {"why": silent[node].why, "since": silent[node].since}, now)
                for node in sorted(heard):
                    publish_event(session, "node.heard", node, {}, now)
        self._silent = (self._silent | fallen) - heard
        return self._review

    def reviewed(self) -> LeaseReview:
        """What the last look came to; from any thread."""
        return self._review

    def report(self) -> dict[str, object]:
        """For /readyz: who is silent, and whether the judge rather suspects itself."""
        return {"silent": sorted(self._silent), "suspects_itself": self._review.why or None, "unknown": self._unknown}
