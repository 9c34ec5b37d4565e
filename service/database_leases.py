"""Leases in the database: renewals are held in memory and written together, two transactions a second.

What a report adds to the store is there before its answer, and that a node is heard whose lease had run out; the time of a
renewal alone is answered first and written later.
This replica's judge sees it at once, in memory; the other replicas' see it through the rows, which are behind by no more than
WRITE_SECONDS. Killed with -9, the service loses the renewals of its last WRITE_SECONDS. The time to live has to tolerate both:
agents renew every second, so the row of a living node is at most 1.5 s old, of 2.5 that it has. After its own start the
judge gives every lease its full time again (detectors/lease.py), so that what was lost makes nobody silent.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anyio import to_thread
from sqlalchemy import Float, bindparam, func, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from detectors.lease import Lease
from service.node_reports import NodeReport, adds_nothing, store_report, stored_report
from service.periodic import repeat
from service.store import Clock, Store
from service.store.accounts import NodeHeat
from service.store.database import insert_or_add
from service.store.jobs import Node
from service.store.together import Together

__all__ = ["DatabaseLeases", "Renewal", "gathered", "newest"]

log = logging.getLogger("pitstop.leases")

WRITE_SECONDS = 0.5
# A shorter time to live would be used up between two writes.
MOST_OF_LIFE = 0.4
# What is stored of a node is compared with its reports anew this often: another replica may have stored something else.
COMPARE_SECONDS = 60.0
REMEMBERED_AGENTS = 20_000


@dataclass(frozen=True, slots=True)
class Renewal:
    """That the agent of `node` was heard at `at`, by the service's clock, and what it said that changes all the time.

    `offset_seconds`: the agent's clock less the service's. `probes_at`: when probes were offered last. `heat`: how hot the
    hottest GPU was by the hour (since the epoch), in degrees Celsius.
    """

    node: str
    at: float
    offset_seconds: float
    probes_at: float | None = None
    heat: Mapping[int, float] = field(default_factory=dict)


def gathered(before: Renewal | None, renewal: Renewal) -> Renewal:
    """`renewal`, with what is not yet written of the one before it."""
    if before is None:
        return renewal
    heat = dict(before.heat)
    for hour, celsius in renewal.heat.items():
        heat[hour] = max(celsius, heat.get(hour, celsius))
    return replace(renewal, probes_at=before.probes_at if renewal.probes_at is None else renewal.probes_at, heat=heat)


def newest(stored: Mapping[str, float], held: Mapping[str, float], now: float) -> dict[str, float]:
    """When each node was heard last, by rows and memory together. A time from the future is of a clock that was moved since."""
    times = dict(stored)
    for node, at in held.items():
        known = times.get(node)
        times[node] = at if known is None or known > now else max(known, at)
    return times


# A row that another replica renewed later stays, unless its time is one of a clock that was moved back since.
RENEW = (
    update(Node)
    .where(
        Node.id == bindparam("node"),
        or_(Node.lease_until.is_(None), Node.lease_until < bindparam("until"), Node.lease_until > bindparam("latest")),
    )
    .values(
        lease_until=bindparam("until"),
        seen_at=bindparam("at"),
        clock_offset_seconds=bindparam("offset"),
        probes_at=func.coalesce(bindparam("offered_at", type_=Float), Node.probes_at),
    )
)


def write_renewals(session: Session, renewals: Iterable[Renewal], ttl_seconds: float, now: float) -> None:
    """Renew the rows of nodes that are stored, in one order everywhere: two replicas never wait for each other."""
    ordered = sorted(renewals, key=lambda renewal: renewal.node)
    rows = [
        {
            "node": renewal.node,
            "until": renewal.at + ttl_seconds,
            "latest": now + 2 * ttl_seconds,
            "at": renewal.at,
            "offset": renewal.offset_seconds,
            "offered_at": renewal.probes_at,
        }
        for renewal in ordered
    ]
    if rows:
        session.connection().execute(RENEW, rows)
    heat = [
        {"node": renewal.node, "hour": hour, "highest_celsius": celsius}
        for renewal in ordered
        for hour, celsius in sorted(renewal.heat.items())
    ]
    if heat:
        insert_or_add(session, NodeHeat, heat, keys=("node", "hour"), raised="highest_celsius")


@dataclass(slots=True)
class Compared:
    """A report of which all is stored, as of `at`. `heard_at`: the last renewal with it."""

    report: NodeReport
    at: float
    heard_at: float


class DatabaseLeases:
    """The rows of the nodes, and the renewals that are not written yet. Safe to share between threads."""

    def __init__(self, store: Store, clock: Clock, ttl_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._held: dict[str, Renewal] = {}
        # By node and agent: several agents of one node, of different jobs, renew one lease.
        self._compared: dict[tuple[str, str | None], Compared] = {}
        # A whole cluster may start at once.
        self._additions = Together(self._store_reports)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._stopping = asyncio.Event()

    def renewed(self, report: NodeReport, renewal: Renewal) -> bool:
        """Hold `renewal` where nothing but its time is new to the store; where not, False: `register` it."""
        compared = self._compared.get((report.node, report.agent_id))
        if (
            compared is None
            or compared.report != report
            or not 0 <= renewal.at - compared.at < COMPARE_SECONDS
            or not 0 <= renewal.at - compared.heard_at <= self._ttl_seconds
        ):
            return False
        compared.heard_at = renewal.at
        self._hold(renewal)
        return True

    def register(self, report: NodeReport, renewal: Renewal) -> None:
        """Compare `report` with the store, and write what it adds, durably. Raises SQLAlchemyError: then it is not stored."""
        key = report.node, report.agent_id
        with self._store.reading() as session:
            stored = stored_report(session, report.node)
            until = session.scalar(select(Node.lease_until).where(Node.id == report.node))
        introduced = key in self._compared or (stored is not None and stored.agent_id == report.agent_id)
        if not (introduced and adds_nothing(report, stored)):
            self._additions.put((report, renewal))
        else:
            self._hold(renewal)
            if until is None or until < renewal.at:
                # Whoever else comes back meanwhile is in the same transaction, or in the next one.
                self.write()
        if len(self._compared) >= REMEMBERED_AGENTS:
            self._compared.clear()
        self._compared[key] = Compared(report, renewal.at, renewal.at)

    def _store_reports(self, additions: Sequence[tuple[NodeReport, Renewal]]) -> None:
        with self._store.writing() as session:
            for report, renewal in sorted(additions, key=lambda addition: addition[0].node):
                store_report(session, report, renewal.at)
            write_renewals(session, [renewal for _, renewal in additions], self._ttl_seconds, self._clock())

    def _hold(self, renewal: Renewal) -> None:
        with self._lock:
            self._held[renewal.node] = gathered(self._held.get(renewal.node), renewal)

    def write(self) -> None:
        """Write what is held, in one transaction. Raises SQLAlchemyError: then all of it is still held."""
        with self._writing:
            with self._lock:
                held = dict(self._held)
            if not held:
                return
            with self._store.writing() as session:
                write_renewals(session, held.values(), self._ttl_seconds, self._clock())
            with self._lock:
                for node, renewal in held.items():
                    if self._held[node] is renewal:
                        del self._held[node]

    def leases(self, now: float) -> Sequence[Lease]:
        """As of `now`. Raises SQLAlchemyError."""
        # Memory first: what is written meanwhile is then seen twice rather than not at all.
        with self._lock:
            held = {node: renewal.at for node, renewal in self._held.items()}
        with self._store.reading() as session:
            rows = session.execute(select(Node.id, Node.lease_until)).all()
        stored = {node: until - self._ttl_seconds for node, until in rows if until is not None}
        return [Lease(node, at, self._ttl_seconds) for node, at in newest(stored, held, now).items()]

    async def run(self) -> None:
        """Write every WRITE_SECONDS until `close`, and then the rest."""
        every = min(WRITE_SECONDS, MOST_OF_LIFE * self._ttl_seconds)
        await repeat(self.write, every, self._stopping, "renewals of leases cannot be written")
        try:
            await to_thread.run_sync(self.write)
        except SQLAlchemyError as error:
            log.warning("the last renewals of leases are not written: %s", str(error).splitlines()[0])

    def close(self) -> None:
        self._stopping.set()
