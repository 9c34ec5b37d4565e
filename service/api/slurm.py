"""The door for Slurm's hooks, and Slurm's jobs as Pitstop knows them."""

from __future__ import annotations

from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from sqlalchemy import func, select
from starlette.requests import ClientDisconnect

from detectors.slurm_states import parse_environment
from service.access import Principal, PrincipalDependency, Right, allow
from service.api.documents import listing, offset_of
from service.api.nodes import check_node
from service.problems import Problem
from service.slurm_words import KINDS, NODE_KINDS
from service.state import Service, ServiceDependency
from service.store.database import timestamp
from service.store.fleet import active_return
from service.store.slurm import SlurmJob, SlurmWord

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/slurm", tags=["slurm"])

MAX_BODY_BYTES = 256 * 1024
STORE_SECONDS = 2.5


@router.post("/hooks/{kind}", operation_id="slurmHook", dependencies=[Depends(allow(Right.NODE))])
async def slurm_hook(
    kind: Annotated[str, Path(max_length=32)], request: Request, service: ServiceDependency, principal: PrincipalDependency
) -> Response:
    """A hook ran: its environment, as `env -0` prints it. The answer is a line for people and, in `Pitstop-Status`, the exit
    status that Nagios plugins have: 0 in service, 2 taken out by Pitstop. Stored durably when it is answered."""
    if kind not in KINDS:
        raise Problem(404, f"no hook {kind!r}: use {', '.join(sorted(KINDS))}")
    try:
        body = await request.body()
    except ClientDisconnect:
        # Its time limit came first; nobody reads the answer.
        return Response(status_code=408)
    if len(body) > MAX_BODY_BYTES:
        raise Problem(413, f"an environment of at most {MAX_BODY_BYTES} bytes is taken")
    try:
        fields = parse_environment(body)
    except ValueError as error:
        raise Problem(400, str(error)) from None
    with anyio.move_on_after(STORE_SECONDS):
        status, text = await anyio.to_thread.run_sync(_take, service, principal, kind, fields, abandon_on_cancel=True)
        return Response(text + "\n", media_type="text/plain", headers={"Pitstop-Status": str(status)})
    raise Problem(503, "the database is too slow", headers={"Retry-After": "1"})


def _take(service: Service, principal: Principal, kind: str, fields: dict[str, str]) -> tuple[int, str]:
    node = fields.get("SLURMD_NODENAME") or fields.get("PITSTOP_NODE") or None
    slurm_id = fields.get("SLURM_JOB_ID") or fields.get("JOBID") or None
    if kind in NODE_KINDS:
        if node is None:
            raise Problem(422, "SLURMD_NODENAME is missing: which node is this?")
        check_node(principal, node)
    now = service.clock()
    with service.store.writing() as session:
        if kind != "health":
            session.add(
                SlurmWord(
                    kind=kind,
                    node=None if node is None else node[:255],
                    slurm_id=slurm_id[:32] if slurm_id and slurm_id.isdecimal() else None,
                    fields=fields,
                    vouched=not principal.capped,
                    received_at=now,
                    done=False,
                )
            )
        out = None if node is None else active_return(session, node)
        if out is not None and not out.over:
            return 2, f"CRITICAL: {node} is taken out by Pitstop: {out.state.get('why', '')}"[:300]
    return 0, "OK"


@router.get("/jobs", operation_id="listSlurmJobs", dependencies=[Depends(allow(Right.READ))])
def list_slurm_jobs(
    service: ServiceDependency, limit: Annotated[int, Query(ge=1, le=500)] = 100, cursor: str | None = None
) -> dict[str, Any]:
    """Jobs of Slurm that carry one of ours, the last heard of first."""
    offset = offset_of(cursor)
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(SlurmJob)) or 0
        rows = session.scalars(select(SlurmJob).order_by(SlurmJob.seen_at.desc(), SlurmJob.id).offset(offset).limit(limit)).all()
    return listing(rows, slurm_job_document, total, offset, limit)


def slurm_job_document(row: SlurmJob) -> dict[str, Any]:
    return {
        "id": row.id,
        "cluster": row.cluster,
        "job": row.job,
        "restarts": row.restarts,
        "nodes": row.nodes,
        "state": row.state,
        "ending": row.ending,
        "requeued": row.requeued,
        "over": row.over,
        "ended_at": timestamp(row.ended_at),
        "seen_at": timestamp(row.seen_at),
    }
