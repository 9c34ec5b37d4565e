"""The fleet under operators' hands: taking nodes out and bringing them back, where they stand, planned work, the breaker."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from recovery.decision import Action
from recovery.envelope import review
from recovery.node_return import Approved, Event, Probed, Rejected, RepairNoted, Uncordoned
from rules.redaction import redact_text
from service.access import Principal, PrincipalDependency, Right, allow
from service.api.approvals import check_reach
from service.api.documents import listing, offset_of
from service.api.nodes import NodeName
from service.fleet import BREAKER, breaker_limits, fleet_of
from service.node_returns import PROBATION, return_terms
from service.problems import Problem, conflict
from service.situations import frozen
from service.state import Service, ServiceDependency
from service.store.access import Switch, audit
from service.store.database import timestamp
from service.store.events import publish_event
from service.store.fleet import MaintenanceRow, NodePlace, NodeReturn, active_return

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["fleet"])

OPERATE = [Depends(allow(Right.OPERATE))]
NOT_OUT = conflict("Pitstop has not taken the node out of service.")
READ = [Depends(allow(Right.READ))]
Why = Annotated[str, Field(min_length=1, max_length=4096)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Epoch = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Reason(Document):
    why: Why


class ProbeResult(Document):
    """What a probe that people ran has shown: the node alone, or with a node known to be good."""

    paired: bool
    passed: bool
    detail: Why


class Place(Document):
    rack: Name | None = None
    is_spare: bool = False


class MaintenanceWindow(Document):
    start: Epoch
    end: Epoch
    why: Why
    nodes: list[Name] = Field(default=[], max_length=100_000)
    racks: list[Name] = Field(default=[], max_length=10_000)


class Breaker(Document):
    """Most nodes out by Pitstop's doing within the window: a share of the fleet, but at least `least`; and per rack or switch."""

    window_seconds: Annotated[float, Field(gt=0, le=31_536_000)] = 86_400.0
    share: Annotated[float, Field(ge=0, le=1)] = 0.05
    least: Annotated[int, Field(ge=0, le=100_000)] = 1
    per_rack: Annotated[int, Field(ge=0, le=100_000)] = 2
    probation_seconds: Annotated[float, Field(ge=0, le=31_536_000)] = 4 * 3600.0
    why: Why


def return_document(service: Service, row: NodeReturn) -> dict[str, Any]:
    state = service.recoveries.returns.state_of(row)
    return {
        "id": row.id,
        "node": row.node,
        "incident": None if row.incident_id is None else str(row.incident_id),
        "phase": row.phase,
        "awaits": None if state.awaits is None else state.awaits.value,
        "why": state.why,
        "trail": [{"phase": phase, "at": timestamp(at), "why": why} for phase, at, why in state.trail],
        "taken_at": timestamp(row.taken_at),
        "returned_at": timestamp(row.returned_at),
        "cancelled_by": row.cancelled_by,
    }


def tell(service: Service, principal: Principal, node: str, act: str, why: str, event: Event) -> dict[str, Any]:
    """An operator's act on a node that is out, audited."""
    check_reach(principal, Action.ISOLATE)
    with service.store.writing() as session:
        row = active_return(session, node)
        if row is None:
            raise Problem(409, f"Pitstop has not taken {node!r} out of service")
        audit(session, principal.name, f"node.{act}", node, why, {"return": row.id}, service.clock())
        row = service.recoveries.returns.tell(session, row.id, event)
        return return_document(service, row)


@router.post(
    "/nodes/{node}/cordon",
    operation_id="cordonNode",
    dependencies=OPERATE,
    responses=conflict("The safety envelope does not let it through."),
)
def cordon(node: NodeName, body: Reason, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Take a node out of service, within the safety envelope."""
    check_reach(principal, Action.ISOLATE)
    why, now = redact_text(body.why), service.clock()
    with service.store.writing() as session:
        verdict = review([node], fleet_of(session, now), now, frozen(session))
        if not verdict.take:
            raise Problem(409, f"not let through: {verdict.sentence}")
        audit(session, principal.name, "node.cordon", node, why, at=now)
        key = f"{principal.name}/{now}/{node}"[:320]
        row = service.recoveries.returns.take_out(
            session, node, key=key, why=f"{principal.name}: {why}", incident=None, recovery=None, generation=0, reset=False
        )
        return return_document(service, row)


@router.post("/nodes/{node}/uncordon", operation_id="uncordonNode", dependencies=OPERATE, responses=NOT_OUT)
def uncordon(node: NodeName, body: Reason, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Say that the node was put back by hand: its return is cancelled, and it is not taken out again within the window."""
    why = redact_text(body.why)
    return tell(service, principal, node, "uncordon", why, Uncordoned(service.clock(), principal.name, ours=False))


@router.post("/nodes/{node}/repair", operation_id="noteRepair", dependencies=OPERATE, responses=NOT_OUT)
def repair(node: NodeName, body: Reason, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Say that the node is repaired, and how. It is qualified again before it gets work."""
    why = redact_text(body.why)
    return tell(service, principal, node, "repair", why, RepairNoted(service.clock(), principal.name, why))


@router.post("/nodes/{node}/probed", operation_id="reportProbe", dependencies=OPERATE, responses=NOT_OUT)
def probed(node: NodeName, body: ProbeResult, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Report a probe that people ran, where the site gave Pitstop none to run."""
    detail = redact_text(body.detail)
    event = Probed(service.clock(), body.paired, body.passed, f"{principal.name}: {detail}")
    return tell(service, principal, node, "probed", detail, event)


@router.post("/nodes/{node}/approve", operation_id="approveReturn", dependencies=OPERATE, responses=NOT_OUT)
def approve(node: NodeName, body: Reason, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Let the next part of the node's return go ahead: its requalification, or its uncordon."""
    return tell(service, principal, node, "approve", redact_text(body.why), Approved(service.clock(), principal.name))


@router.post("/nodes/{node}/reject", operation_id="rejectReturn", dependencies=OPERATE, responses=NOT_OUT)
def reject(node: NodeName, body: Reason, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Send the node back to the start of its return."""
    why = redact_text(body.why)
    return tell(service, principal, node, "reject", why, Rejected(service.clock(), principal.name, why))


@router.put("/nodes/{node}/place", operation_id="placeNode", dependencies=OPERATE)
def place(node: NodeName, body: Place, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Say which rack (or switch) a node stands in, and whether it is a spare."""
    check_reach(principal, Action.ISOLATE)
    with service.store.writing() as session:
        session.merge(NodePlace(node=node, rack=body.rack, is_spare=body.is_spare))
        audit(session, principal.name, "node.place", node, "", body.model_dump(), service.clock())
    return {"node": node, **body.model_dump()}


@router.get("/returns", operation_id="listReturns", dependencies=READ)
def list_returns(
    service: ServiceDependency, limit: Annotated[int, Query(ge=1, le=500)] = 100, cursor: str | None = None
) -> dict[str, Any]:
    """Nodes that Pitstop took out, the newest first, with how far each has come back."""
    offset = offset_of(cursor)
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(NodeReturn)) or 0
        rows = session.scalars(select(NodeReturn).order_by(NodeReturn.id.desc()).offset(offset).limit(limit)).all()
    return listing(rows, lambda row: return_document(service, row), total, offset, limit)


def maintenance_document(row: MaintenanceRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "start": row.start_at,
        "end": row.end_at,
        "why": row.why,
        "nodes": row.nodes,
        "racks": row.racks,
        "created_by": row.created_by,
    }


@router.post("/maintenance", status_code=201, operation_id="planMaintenance", dependencies=OPERATE)
def plan_maintenance(body: MaintenanceWindow, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Announce planned work: faults there are expected, nothing is isolated for them."""
    if body.end <= body.start:
        raise Problem(422, "end: the window ends before it begins")
    now, why = service.clock(), redact_text(body.why)
    with service.store.writing() as session:
        row = MaintenanceRow(
            start_at=body.start,
            end_at=body.end,
            why=why,
            nodes=body.nodes,
            racks=body.racks,
            created_by=principal.name,
            created_at=now,
        )
        session.add(row)
        audit(session, principal.name, "maintenance.plan", "fleet", why, body.model_dump(), now)
        session.flush()
        publish_event(session, "maintenance.planned", str(row.id), {"by": principal.name}, now)
        return maintenance_document(row)


@router.get("/maintenance", operation_id="listMaintenance", dependencies=READ)
def list_maintenance(service: ServiceDependency) -> dict[str, Any]:
    """Planned work that is not over."""
    with service.store.reading() as session:
        rows = session.scalars(
            select(MaintenanceRow).where(MaintenanceRow.end_at > service.clock()).order_by(MaintenanceRow.start_at).limit(500)
        ).all()
    return listing(rows, maintenance_document, len(rows), 0, 500)


@router.delete("/maintenance/{id}", status_code=204, operation_id="cancelMaintenance", dependencies=OPERATE)
def cancel_maintenance(
    id: Annotated[int, Path(ge=1, le=2**62)], service: ServiceDependency, principal: PrincipalDependency
) -> Response:
    with service.store.writing() as session:
        row = session.get(MaintenanceRow, id)
        if row is None:
            raise Problem(404, f"there is no maintenance {id}")
        audit(session, principal.name, "maintenance.cancel", "fleet", row.why, maintenance_document(row), service.clock())
        session.delete(row)
        publish_event(session, "maintenance.cancelled", str(id), {"by": principal.name}, service.clock())
    return Response(status_code=204)


@router.get("/breaker", operation_id="getBreaker", dependencies=READ)
def get_breaker(service: ServiceDependency) -> dict[str, Any]:
    """The breaker's limits, and how much of them is used."""
    with service.store.reading() as session:
        return breaker_document(service, session)


@router.put("/breaker", operation_id="setBreaker", dependencies=OPERATE)
def set_breaker(body: Breaker, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Set the breaker's limits and the length of a returning node's probation."""
    check_reach(principal, Action.ISOLATE)
    now, why = service.clock(), redact_text(body.why)
    with service.store.writing() as session:
        limits = body.model_dump(exclude={"why", "probation_seconds"})
        session.merge(Switch(name=BREAKER, value=limits, set_by=principal.name, set_at=now))
        session.merge(Switch(name=PROBATION, value={"seconds": body.probation_seconds}, set_by=principal.name, set_at=now))
        audit(session, principal.name, "breaker.set", "fleet", why, body.model_dump(exclude={"why"}), now)
        session.flush()
        return breaker_document(service, session)


def breaker_document(service: Service, session: Session) -> dict[str, Any]:
    now = service.clock()
    fleet, limits = fleet_of(session, now), breaker_limits(session)
    return {
        "window_seconds": limits.window_seconds,
        "share": limits.share,
        "least": limits.least,
        "per_rack": limits.per_rack,
        "limit": limits.overall(len(fleet.nodes)),
        "out": sorted(fleet.counted(now)),
        "fleet": len(fleet.nodes),
        "probation_seconds": return_terms(session).probation_seconds,
    }
