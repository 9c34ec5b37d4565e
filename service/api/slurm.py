"""The door for Slurm's hooks, and Slurm's jobs as Pitstop knows them."""

from __future__ import annotations

from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import func, select
from starlette.requests import ClientDisconnect

from detectors.slurm_states import parse_environment
from recovery.drivers.command import DriverError
from recovery.drivers.slurm import JobGoal, Verb, carry_out
from service.access import Principal, PrincipalDependency, Right, allow
from service.api.documents import listing, offset_of
from service.api.nodes import check_node
from service.driver_calls import ask_slurm
from service.openapi import raw_body
from service.problems import Problem, conflict
from service.slurm_words import KINDS, NODE_KINDS
from service.state import Service, ServiceDependency
from service.store.access import audit
from service.store.database import timestamp
from service.store.fleet import active_return
from service.store.slurm import SlurmJob, SlurmWord

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/slurm", tags=["slurm"])

# Marks in Slurm what people asked for here; a recovery's mark is its number.
OPERATORS = "operators"
MAX_BODY_BYTES = 256 * 1024
STORE_SECONDS = 2.5
ENVIRONMENT = raw_body(application_octet_stream={"type": "string", "format": "binary"})


@router.post(
    "/hooks/{kind}",
    operation_id="slurmHook",
    dependencies=[Depends(allow(Right.NODE))],
    response_class=PlainTextResponse,
    openapi_extra=ENVIRONMENT,
)
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


class Asked(BaseModel):
    """`exclude`: nodes that a requeued job must not run on again."""

    model_config = ConfigDict(extra="forbid")

    why: Annotated[str, Field(min_length=1, max_length=1000)]
    exclude: list[Annotated[str, Field(max_length=255)]] = Field(default=[], max_length=1000)


@router.post(
    "/jobs/{slurm_id}/{verb}",
    operation_id="askSlurm",
    dependencies=[Depends(allow(Right.OPERATE))],
    responses=conflict("No Slurm is set up."),
)
def ask(
    slurm_id: Annotated[str, Path(max_length=32)],
    verb: Verb,
    body: Asked,
    service: ServiceDependency,
    principal: PrincipalDependency,
) -> dict[str, Any]:
    """Requeue (without some nodes), hold, release or cancel a job in Pitstop's care, looked at before and after each command."""
    site = service.recoveries.returns.drivers.slurm
    if site is None:
        raise Problem(409, "no Slurm is set up: name it in PITSTOP_DRIVERS_FILE (docs/slurm.md)")
    if principal.capped:
        raise Problem(403, "what reaches beyond a job's own processes needs an operator's token")
    with service.store.reading() as session:
        row = session.scalars(select(SlurmJob).where(SlurmJob.id == slurm_id).order_by(SlurmJob.seen_at.desc())).first()
    if row is None:
        raise Problem(404, f"no job {slurm_id!r} of Slurm is in Pitstop's care")
    try:
        goal = JobGoal(verb, row.id, row.restarts, OPERATORS, body.why, tuple(body.exclude))
    except DriverError as error:
        raise Problem(422, str(error)) from None
    carried = carry_out(goal, site, ask_slurm)
    facts = {"commands": list(carried.did), "why": body.why, "exclude": body.exclude, "done": carried.done}
    with service.store.writing() as session:
        audit(session, principal.name, f"slurm.{verb.value}", row.job, carried.detail, facts, service.clock())
    return {"done": carried.done, "settled": carried.final, "detail": carried.detail, "commands": list(carried.did)}


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
