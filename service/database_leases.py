"""Leases in the database: renewals are held in memory and written together, two transactions a second.

What a report adds to the store is there before its answer, and that a node is heard whose lease had run out; the time of a
renewal alone is answered first and written later.
This replica's judge sees it at once, in memory; the other replicas' see it through the rows, which are behind by no more than
WRITE_SECONDS and read again every READ_SECONDS. Killed with -9, the service loses the renewals of its last WRITE_SECONDS. The
time to live has to tolerate all that: agents renew every second, so a living node was heard 2 s ago at most, of 2.5 that it has.
After its own start the judge gives every lease its full time again (detectors/lease.py): what was lost makes nobody silent.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from anyio import to_thread
from pydantic_core import to_json
from sqlalchemy import JSON, Float, Select, String, Update, bindparam, cast, func, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from detectors.lease import Lease
from service.node_reports import NodeReport, adds_nothing, store_reports, stored_reports
from service.periodic import repeat
from service.store import Clock, Store
from service.store.accounts import NodeHeat
from service.store.database import insert_or_add, select_in
from service.store.jobs import Node

__all__ = ["NO_HEAT", "Arrival", "DatabaseLeases", "Renewal", "gathered", "newest"]

log = logging.getLogger("pitstop.leases")

WRITE_SECONDS = 0.5
# How old the rows of other replicas may be that are judged by.
READ_SECONDS = 0.5
# A shorter time to live would be used up between two writes.
MOST_OF_LIFE = 0.4
# What is stored of a node is compared with its reports anew this often: another replica may have stored something else.
COMPARE_SECONDS = 60.0
REMEMBERED_AGENTS = 20_000
NO_HEAT: Mapping[int, float] = MappingProxyType({})


class Renewal(NamedTuple):
    """That the agent of `node` was heard at `at`, by the service's clock, and what it said that changes all the time.

    `offset_seconds`: the agent's clock less the service's. `probes_at`: when probes were offered last. `heat`: how hot the
    hottest GPU was by the hour (since the epoch), in degrees Celsius.
    """

    node: str
    at: float
    offset_seconds: float
    probes_at: float | None = None
    heat: Mapping[int, float] = NO_HEAT


def gathered(before: Renewal | None, renewal: Renewal) -> Renewal:
    """`renewal`, with what is not yet written of the one before it."""
    if before is None or (not before.heat and (before.probes_at is None or renewal.probes_at is not None)):
        return renewal
    heat = dict(before.heat)
    for hour, celsius in renewal.heat.items():
        heat[hour] = max(celsius, heat.get(hour, celsius))
    return renewal._replace(probes_at=before.probes_at if renewal.probes_at is None else renewal.probes_at, heat=heat)


def newest(stored: Mapping[str, float], held: Mapping[str, float], now: float) -> dict[str, float]:
    """When each node was heard last, by rows and memory together. A time from the future is of a clock that was moved since."""
    times = dict(stored)
    for node, at in held.items():
        known = times.get(node)
        if known is None or not at < known <= now:
            times[node] = at
    return times


@cache
def renewing(dialect: str) -> tuple[Select[Any], Update]:
    """Statements that lock the rows named in the document `rows`, and renew them: [node, at, until, offset, offered_at] each.

    A row that another replica renewed later stays, unless its time is one of a clock that was moved back since: after `latest`.
    """
    rows = bindparam("rows", type_=String)
    each = func.json_each(rows) if dialect == "sqlite" else func.json_array_elements(cast(rows, JSON))
    given = each.table_valued("value")
    at, until, offset, offered_at = (cast(given.c.value.op("->>")(field), Float) for field in range(1, 5))
    named = Node.id == given.c.value.op("->>")(0)
    # In one order everywhere: two replicas never wait for each other.
    locking = select(Node.id).where(named).order_by(Node.id).with_for_update(of=Node)
    older = or_(Node.lease_until.is_(None), Node.lease_until < until, Node.lease_until > bindparam("latest", type_=Float))
    said = {"lease_until": until, "seen_at": at, "clock_offset_seconds": offset}
    return locking, update(Node).where(named, older).values(**said, probes_at=func.coalesce(offered_at, Node.probes_at))


def write_renewals(session: Session, renewals: Collection[Renewal], ttl_seconds: float, now: float) -> None:
    """Renew the rows of nodes that are stored."""
    given = [[item.node, item.at, item.at + ttl_seconds, item.offset_seconds, item.probes_at] for item in renewals]
    rows = to_json(given).decode()
    dialect = session.get_bind().dialect.name
    locking, renew = renewing(dialect)
    if dialect != "sqlite":
        session.execute(locking, {"rows": rows})
    session.connection().execute(renew, {"rows": rows, "latest": now + 2 * ttl_seconds})
    heat = [
        {"node": renewal.node, "hour": hour, "highest_celsius": celsius}
        for renewal in sorted(renewals, key=lambda renewal: renewal.node)
        for hour, celsius in sorted(renewal.heat.items())
    ]
    if heat:
        insert_or_add(session, NodeHeat, heat, keys=("node", "hour"), raised="highest_celsius")


Arrival = tuple[NodeReport, Renewal]


@dataclass(slots=True)
class Compared:
    """A report of which all is stored, as of `at`. `heard_at`: the last renewal with it."""

    report: NodeReport
    at: float
    heard_at: float


def agent_of(report: NodeReport) -> tuple[str, str | None]:
    """Several agents of one node, of different jobs, renew one lease."""
    return report.node, report.agent_id


class DatabaseLeases:
    """The rows of the nodes, and the renewals that are not written yet. Safe to share between threads."""

    def __init__(self, store: Store, clock: Clock, ttl_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._held: dict[str, Renewal] = {}
        # When nodes were heard here lately, and what the rows said of all of them when they were read.
        self._heard: dict[str, float] = {}
        self._read: dict[str, float] = {}
        self._read_at = -math.inf
        self._compared: dict[tuple[str, str | None], Compared] = {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._stopping = asyncio.Event()

    def renewed(self, report: NodeReport, renewal: Renewal) -> bool:
        """Hold `renewal` where nothing but its time is new to the store; where not, False: `register` it."""
        compared = self._compared.get(agent_of(report))
        if (
            compared is None
            or (compared.report is not report and compared.report != report)
            or not 0 <= renewal.at - compared.at < COMPARE_SECONDS
            or not 0 <= renewal.at - compared.heard_at <= self._ttl_seconds
        ):
            return False
        compared.report, compared.heard_at = report, renewal.at
        self._hold(renewal)
        return True

    def register(self, arrivals: Sequence[Arrival]) -> None:
        """Compare reports with the store, and write what they add, durably. Raises SQLAlchemyError: then they are not stored."""
        with self._store.reading() as session:
            names = sorted({report.node for report, _ in arrivals})
            stored = stored_reports(session, names)
            until = {row.id: row.lease_until or 0.0 for row in select_in(session, select(Node), Node.id, names)}
        additions: list[Arrival] = []
        returned = False
        for report, renewal in sorted(arrivals, key=lambda arrival: arrival[0].node):
            known = stored.get(report.node)
            introduced = agent_of(report) in self._compared or (known is not None and known.agent_id == report.agent_id)
            if introduced and adds_nothing(report, known):
                self._hold(renewal)
                returned = returned or until.get(report.node, 0.0) < renewal.at
            else:
                additions.append((report, renewal))
        if additions:
            renewals: dict[str, Renewal] = {}
            for _, renewal in additions:
                renewals[renewal.node] = gathered(renewals.get(renewal.node), renewal)
            with self._store.writing() as session:
                store_reports(session, [(report, renewal.at) for report, renewal in additions])
                write_renewals(session, renewals.values(), self._ttl_seconds, self._clock())
            with self._lock:
                self._heard |= {node: renewal.at for node, renewal in renewals.items()}
        if returned:
            self.write()
        if len(self._compared) >= REMEMBERED_AGENTS:
            self._compared.clear()
        for report, renewal in arrivals:
            self._compared[agent_of(report)] = Compared(report, renewal.at, renewal.at)

    def _hold(self, renewal: Renewal) -> None:
        with self._lock:
            self._held[renewal.node] = gathered(self._held.get(renewal.node), renewal)
            self._heard[renewal.node] = renewal.at

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
            heard = dict(self._heard)
        if not 0 <= now - self._read_at < READ_SECONDS:
            with self._store.reading() as session:
                # Tuples of columns: 2,000 of them take the session twice as long as the connection.
                rows = session.connection().execute(select(Node.id, Node.lease_until)).all()
            self._read, self._read_at = {node: until - self._ttl_seconds for node, until in rows if until is not None}, now
            with self._lock:
                # What is neither held nor fresh is in the rows by now.
                held = {node: renewal.at for node, renewal in self._held.items()}
                self._heard = {node: at for node, at in self._heard.items() if now - self._ttl_seconds < at} | held
        times = newest(self._read, heard, now)
        return list(map(Lease, times, times.values(), itertools.repeat(self._ttl_seconds)))

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
