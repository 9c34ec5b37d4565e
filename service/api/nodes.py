"""Nodes and the leases of their agents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.access import Principal, PrincipalDependency, Right, allow
from service.api.documents import listing, node_document, offset_of
from service.database_leases import NO_HEAT, Renewal
from service.implications import lemons
from service.node_reports import NodeReport, ReportedGpu
from service.problems import Problem
from service.said_before import Said
from service.state import Service, ServiceDependency
from service.store.jobs import Node, NodeAlias

__all__ = ["NodeName", "check_node", "renew_in_memory", "router"]

router = APIRouter(prefix="/api/v1/nodes", tags=["nodes"])

NodeName = Annotated[str, Path(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
Alias = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]


class GpuReport(BaseModel):
    model_config = ConfigDict(extra="ignore")

    uuid: Annotated[str, Field(max_length=128)] | None = None
    serial: Annotated[str, Field(max_length=128)] | None = None
    pci: Annotated[str, Field(max_length=64)] | None = None
    index: Annotated[int, Field(ge=0, le=1024)] | None = None
    celsius: Annotated[float, Field(ge=-50, le=200, allow_inf_nan=False)] | None = None


class Lease(BaseModel):
    model_config = ConfigDict(extra="ignore")

    boot_id: Annotated[str, Field(min_length=1, max_length=64)]
    agent_id: Annotated[str, Field(min_length=1, max_length=64)]
    aliases: list[Alias] = Field(default_factory=list, max_length=64)
    versions: dict[str, Annotated[str, Field(max_length=255)]] = Field(default_factory=dict, max_length=64)
    gpus: list[GpuReport] = Field(default_factory=list, max_length=64)
    probes: Literal["gloo", "nccl"] | None = None
    clock: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]


def check_node(principal: Principal, node: str) -> None:
    """403 where the caller's token belongs to another node."""
    if not principal.bound_to(node):
        raise Problem(403, f"the token {principal.name!r} does not belong to node {node!r}")


def aliases_of(session: Session, nodes: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {node: [] for node in nodes}
    for row in session.scalars(select(NodeAlias).where(NodeAlias.node.in_(nodes)).order_by(NodeAlias.alias)):
        found[row.node].append(row.alias)
    return found


def reported(node: str, body: Lease) -> NodeReport:
    gpus = [ReportedGpu(gpu.uuid, gpu.serial, gpu.pci, gpu.index) for gpu in body.gpus]
    known = {gpu.identity: gpu for gpu in gpus if gpu.identity}
    return NodeReport(node, body.agent_id, body.boot_id, body.versions, frozenset(body.aliases) - {node}, known, body.probes)


def said_in(node: str, body: Lease) -> Said:
    celsius = [gpu.celsius for gpu in body.gpus if gpu.celsius is not None]
    return Said(reported(node, body), max(celsius, default=None))


def renewal_of(said: Said, clock: float, now: float) -> Renewal:
    heat = NO_HEAT if said.celsius is None else {int(now // 3600): said.celsius}
    return Renewal(said.report.node, now, clock - now, now if said.report.probes is not None else None, heat)


def renew_in_memory(service: Service, principal: Principal, node: str, body: bytes) -> dict[str, Any] | None:
    """The answer to a renewal that says nothing new; None where it has to be looked into."""
    if Right.NODE not in principal.rights or not principal.bound_to(node):
        return None
    known = service.said_before.read(node, body)
    if known is None:
        try:
            lease = Lease.model_validate_json(body)
        except ValidationError:
            return None
        known = said_in(node, lease), lease.clock
        service.said_before.remember(node, body, known[0])
    said, clock = known
    now = service.clock()
    if not service.leases.renewed(said.report, renewal_of(said, clock, now)):
        return None
    service.heard(node)
    return lease_document(service, now)


@router.post("/{node}/lease", operation_id="renewLease", dependencies=[Depends(allow(Right.NODE))])
async def renew_lease(node: NodeName, body: Lease, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """The agent of `node` is alive. The answer says for how long that holds, and what time it is here."""
    check_node(principal, node)
    service.heard(node)
    now = service.clock()
    said = said_in(node, body)
    await service.registrations.put((said.report, renewal_of(said, body.clock, now)))
    return lease_document(service, now)


def lease_document(service: Service, now: float) -> dict[str, Any]:
    return {"ttl_seconds": service.settings.lease_seconds, "time": now}


@router.get("", operation_id="listNodes", dependencies=[Depends(allow(Right.READ))])
def list_nodes(
    service: ServiceDependency, limit: Annotated[int, Query(ge=1, le=1000)] = 200, cursor: str | None = None
) -> dict[str, Any]:
    """Nodes by name."""
    offset = offset_of(cursor)
    now = service.clock()
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(Node)) or 0
        rows = session.scalars(select(Node).order_by(Node.id).offset(offset).limit(limit)).all()
        aliases = aliases_of(session, [row.id for row in rows])
    return listing(rows, lambda row: node_document(row, aliases[row.id], now), total, offset, limit)


@router.get("/suspects", operation_id="listSuspects", dependencies=[Depends(allow(Right.READ))])
def list_suspects(
    service: ServiceDependency,
    kind: Literal["node", "gpu", "link"] | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> dict[str, Any]:
    """Nodes, GPUs and links at which failures of several jobs point, the most suspicious first."""
    now = service.clock()
    with service.store.reading() as session:
        found = lemons(session, now, kind, limit)
    return listing(found, asdict, len(found), 0, limit)


@router.get("/{node}", operation_id="getNode", dependencies=[Depends(allow(Right.READ))])
def get_node(node: NodeName, service: ServiceDependency) -> dict[str, Any]:
    """One node, under its canonical id."""
    with service.store.reading() as session:
        row = session.get(Node, node)
        if row is None:
            raise Problem(404, f"no agent of a node {node!r} has reported")
        return node_document(row, aliases_of(session, [node])[node], service.clock())
