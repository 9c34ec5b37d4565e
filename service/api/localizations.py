"""Fault localisations: ask for one, and read what its probes showed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import func, select

from service.access import PrincipalDependency, Right, allow
from service.api.documents import listing, offset_of
from service.fleet import busy_nodes
from service.localization_documents import localization_document
from service.localization_requests import pool_for
from service.localizations import Request
from service.problems import Problem, conflict
from service.situations import frozen, has_agent, nodes_of
from service.state import ServiceDependency
from service.store.jobs import Job, JobState, current_attempt
from service.store.localizations import LocalizationRow, probes_of

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/localizations", tags=["localizations"])

Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
LIMIT_SECONDS = 60.0


class Wanted(BaseModel):
    """Either the nodes of `job`, whose ranks are stopped first and stay so until something starts them again; or idle nodes."""

    model_config = ConfigDict(extra="forbid")

    job: Name | None = None
    nodes: list[Name] = Field(default=[], max_length=4096)
    spares: list[Name] | None = Field(default=None, max_length=64)
    seconds: Annotated[float, Field(ge=5, le=600)] = LIMIT_SECONDS


@router.post(
    "",
    operation_id="localise",
    status_code=202,
    dependencies=[Depends(allow(Right.OPERATE))],
    responses=conflict("Frozen, busy, or nothing to localise on.") | {404: {"description": "No such job is registered."}},
)
def localise(body: Wanted, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Begin a localisation; its probes and its verdict are read under the answer's id."""
    now = service.clock()
    with service.store.writing() as session:
        if (why := frozen(session)) is not None:
            raise Problem(409, f"Pitstop is frozen ({why})")
        nodes, generation, stop = tuple(dict.fromkeys(body.nodes)), 0, tuple[str, ...]()
        if (body.job is None) == (not nodes):
            raise Problem(422, "name either a job or nodes")
        if body.job is not None:
            job = session.get(Job, body.job)
            if job is None:
                raise Problem(404, f"no job {body.job!r} was registered")
            nodes, generation = nodes_of(job, current_attempt(session, job.name)), job.generation
            stop = tuple(node for node in nodes if job.state == JobState.RUNNING and has_agent(session, (node,), now))
        elif busy := sorted(busy_nodes(session).intersection(nodes)):
            raise Problem(409, f"running jobs are on {', '.join(busy[:5])}: name the job, and its ranks are stopped first")
        if not nodes:
            raise Problem(409, f"it is not known which nodes job {body.job!r} is on")
        pool = pool_for(session, nodes, now, body.spares)
        asked = Request(pool, principal.name, now + body.seconds, body.job, generation, stop)
        begun = service.localizations.begin(session, asked)
        if isinstance(begun, str):
            raise Problem(409, begun)
        return localization_document(session.get_one(LocalizationRow, begun), ())


@router.get("", operation_id="listLocalizations", dependencies=[Depends(allow(Right.READ))])
def list_localizations(
    service: ServiceDependency, limit: Annotated[int, Query(ge=1, le=500)] = 100, cursor: str | None = None
) -> dict[str, Any]:
    """Localisations, the newest first, without their probes."""
    offset = offset_of(cursor)
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(LocalizationRow)) or 0
        rows = session.scalars(select(LocalizationRow).order_by(LocalizationRow.id.desc()).offset(offset).limit(limit)).all()
    return listing(rows, lambda row: localization_document(row, ()), total, offset, limit)


@router.get("/{id}", operation_id="getLocalization", dependencies=[Depends(allow(Right.READ))])
def get_localization(id: Annotated[int, Path(ge=1, le=2**62)], service: ServiceDependency) -> dict[str, Any]:
    """One localisation with every probe and, once it is done, its verdict."""
    with service.store.reading() as session:
        row = session.get(LocalizationRow, id)
        if row is None:
            raise Problem(404, f"there is no localisation {id}")
        return localization_document(row, probes_of(session, id))
