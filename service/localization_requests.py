"""Whom a localisation looks at: the nodes of a failed job, spares as partners, and the racks that they share."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from recovery.envelope import free_spares
from recovery.localization.probes import Pool
from service.fleet import busy_nodes, fleet_of
from service.localizations import Localizations, Request, able_nodes
from service.situations import has_agent, nodes_of
from service.store.fleet import NodePlace
from service.store.jobs import Job, current_attempt
from service.store.recoveries import RecoveryRow

__all__ = ["localise_recovery", "pool_for"]

# Spares that serve as partners; more would only be probed themselves.
MOST_SPARES = 8


def pool_for(session: Session, nodes: Sequence[str], now: float, spares: Sequence[str] | None = None) -> Pool:
    """A pool of these nodes in their order. `spares` None: the free ones that offer probes."""
    if spares is None:
        free = free_spares(fleet_of(session, now), busy_nodes(session), now)
        able = able_nodes(session, free, now)
        spares = [node for node in free if node in able and node not in nodes][:MOST_SPARES]
    places = session.execute(select(NodePlace.node, NodePlace.rack).where(NodePlace.node.in_([*nodes, *spares])))
    return Pool(tuple(nodes), tuple(spares), {place.node: (place.rack,) for place in places if place.rack})


def localise_recovery(localizations: Localizations, session: Session, row: RecoveryRow, until: float) -> str | None:
    """Begin to localise the failure of `row`: the ranks of its job are stopped first, where agents care for them. A job that went
    on by itself meanwhile is left alone."""
    now = localizations.clock()
    job = session.get_one(Job, row.job)
    if job.generation > row.generation:
        return f"the job goes on under generation {job.generation}: its ranks are not stopped for probes"
    nodes = nodes_of(job, current_attempt(session, row.job))
    stop = tuple(node for node in nodes if has_agent(session, (node,), now))
    begun = localizations.begin(
        session,
        Request(
            pool_for(session, nodes, now),
            asked_by="policy",
            until=until,
            job=job.name,
            generation=job.generation,
            stop=stop,
            recovery=row.id,
            incident=row.incident_id,
        ),
    )
    return begun if isinstance(begun, str) else None
