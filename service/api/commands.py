"""Commands to the agents of nodes, and their answers."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select

from service.access import PrincipalDependency, Right, allow
from service.api.nodes import NodeName, check_node
from service.problems import Problem
from service.situations import frozen
from service.state import Service, ServiceDependency
from service.store.recoveries import CommandRow, commands_after

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/nodes", tags=["commands"])


class ProbeAnswer(BaseModel):
    """What a member of a world saw. `took`: seconds with everything around the allgather; `host`, `port`: its next store."""

    model_config = ConfigDict(extra="ignore")

    outcome: Literal["passed", "timed_out", "error", "wrong_data", "void"]
    seconds: Annotated[float, Field(ge=0, le=3600)]
    took: Annotated[float, Field(ge=0, le=3600)] | None = None
    error: Annotated[str, Field(max_length=4096)] = ""
    host: Annotated[str, Field(max_length=255)] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None


class CommandResult(BaseModel):
    model_config = ConfigDict(extra="ignore")

    status: Literal["done", "failed", "refused", "expired"]
    generation: Annotated[int, Field(ge=0, le=2**31 - 1)]
    detail: Annotated[str, Field(max_length=4096)] = ""
    ranks: list[dict[str, Any]] = Field(default=[], max_length=100_000)
    probe: ProbeAnswer | None = None


def command_document(row: CommandRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "job": row.job,
        "generation": row.generation,
        "kind": row.kind,
        "args": row.args,
        "deadline": row.deadline,
    }


@router.get("/{node}/commands", operation_id="listCommands", dependencies=[Depends(allow(Right.NODE))])
async def list_commands(
    node: NodeName,
    service: ServiceDependency,
    principal: PrincipalDependency,
    after: Annotated[int, Query(ge=0, le=2**63 - 1)] = 0,
    wait: Annotated[float, Query(ge=0, le=60)] = 0.0,
) -> dict[str, Any]:
    """Commands to `node` with ids above `after` that are still to be carried out; with `wait`, as soon as there is one.
    None are given out while Pitstop is frozen."""
    check_node(principal, node)
    until = time.monotonic() + wait
    while True:
        seen = service.watch.last_id
        items = await anyio.to_thread.run_sync(_read, service, node, after)
        left = until - time.monotonic()
        if items or left <= 0 or service.watch.closing:
            return {"items": items, "total": len(items), "next_cursor": None}
        await service.watch.wait_after(seen, left)


def _read(service: Service, node: str, after: int) -> list[dict[str, Any]]:
    with service.store.reading() as session:
        if frozen(session) is not None:
            return []
        return [command_document(row) for row in commands_after(session, node, after, service.clock())]


@router.post("/{node}/commands/{id}/result", operation_id="reportCommandResult", dependencies=[Depends(allow(Right.NODE))])
def report_result(
    node: NodeName,
    id: Annotated[int, Path(ge=1, le=2**63 - 1)],
    body: CommandResult,
    service: ServiceDependency,
    principal: PrincipalDependency,
) -> dict[str, Any]:
    """What became of a command. The first answer counts; another one changes nothing and gets the first."""
    check_node(principal, node)
    with service.store.reading() as session:
        given = session.execute(
            select(CommandRow.node, CommandRow.localization_id, CommandRow.status).where(CommandRow.id == id)
        ).first()
    if given is not None and given.node == node and given.localization_id is not None:
        if given.status is None:
            measured = None if body.probe is None else body.probe.model_dump()
            try:
                service.localizations.deliver(id, body.status, body.generation, body.detail, measured)
            except TimeoutError:
                raise Problem(503, "answers cannot be stored just now", headers={"Retry-After": "1"}) from None
        return {"id": id, "status": given.status or body.status, "generation": body.generation}
    with service.store.writing() as session:
        row = session.get(CommandRow, id)
        if row is None or row.node != node:
            raise Problem(404, f"no command {id} was given to node {node!r}")
        service.recoveries.answered(session, row, body.status, body.generation, body.detail)
        return {"id": row.id, "status": row.status, "generation": row.answered_generation}
