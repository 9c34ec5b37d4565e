"""The fleet as the safety envelope sees it, drawn from the store."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from recovery.envelope import BreakerLimits, Fleet, Maintenance, NodeFacts, Removal
from service.store.access import Switch
from service.store.fleet import MaintenanceRow, NodePlace, NodeReturn
from service.store.jobs import Job, JobState, Node, current_attempt

__all__ = ["BREAKER", "HELD", "OUT", "breaker_limits", "busy_nodes", "fleet_of"]

# Switch (service/store/access.py): the breaker's limits that operators set.
BREAKER = "breaker"
# States of a node (service/store/jobs.Node): out of service by us, or by somebody else.
OUT = "cordoned"
HELD = "held"


def breaker_limits(session: Session) -> BreakerLimits:
    """As operators set them, else the defaults."""
    switch = session.get(Switch, BREAKER)
    known = {item.name for item in fields(BreakerLimits)}
    given: dict[str, Any] = {} if switch is None else {name: value for name, value in switch.value.items() if name in known}
    return BreakerLimits(**given)


def fleet_of(session: Session, now: float) -> Fleet:
    """Every node that an agent reported or people placed, what Pitstop took out, and what is planned."""
    limits = breaker_limits(session)
    places = {place.node: place for place in session.scalars(select(NodePlace))}
    reported = {name: (state, until) for name, state, until in session.execute(select(Node.id, Node.state, Node.lease_until))}
    nodes = {}
    for name in sorted({*places, *reported}):
        place, (state, until) = places.get(name), reported.get(name, (None, None))
        by = {OUT: "pitstop", HELD: "others"}.get(state or "")
        alive = until is not None and until > now
        nodes[name] = NodeFacts(name, place.rack if place else None, by, bool(place and place.is_spare), alive)
    recent = select(NodeReturn).where(or_(NodeReturn.over.is_(False), NodeReturn.taken_at > now - limits.window_seconds))
    removals = tuple(
        Removal(row.node, row.taken_at, row.returned_at, row.cancelled_by)
        for row in session.scalars(recent.order_by(NodeReturn.id))
    )
    planned = tuple(
        Maintenance(row.start_at, row.end_at, row.why, frozenset(row.nodes), frozenset(row.racks))
        for row in session.scalars(select(MaintenanceRow).where(MaintenanceRow.end_at > now))
    )
    return Fleet(nodes, removals, planned, limits)


def busy_nodes(session: Session) -> frozenset[str]:
    """Nodes that running jobs are on."""
    busy: set[str] = set()
    for name in session.scalars(select(Job.name).where(Job.state == JobState.RUNNING)):
        attempt = current_attempt(session, name)
        busy |= {str(rank["node"]) for rank in (attempt.ranks if attempt is not None else []) if rank.get("node")}
    return frozenset(busy)
