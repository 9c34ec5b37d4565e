"""Evaluation runs: what their coordinators tell, and the slots that are asked back from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.access import PrincipalDependency, Right, allow
from service.api.documents import listing, offset_of
from service.api.jobs import JobName, launched_job
from service.problems import Problem
from service.state import ServiceDependency
from service.store.access import audit
from service.store.evaluations import EvaluationRun
from service.store.events import publish_event

__all__ = ["router", "run_or_404"]

router = APIRouter(prefix="/api/v1/trials", tags=["trials"])

Text = Annotated[str, Field(max_length=1024)]
Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
Count = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]


class Told(BaseModel):
    """Coordinators may be newer than this service: what it does not know, it leaves."""

    model_config = ConfigDict(extra="ignore")


class DatasetTold(Told):
    name: Text
    samples: Count
    generated: Count
    verified: Count
    score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    failed_samples: Count = 0
    given_up: Text | None = None


class TrialTold(Told):
    slot: Text
    label: Text


class BarTold(Told):
    """One process of the run; seconds from the run's start."""

    row: Text
    label: Text
    start: Seconds
    end: Seconds
    failed: bool = False


class FailureTold(Told):
    kind: Text
    row: Text
    label: Text
    error: Text


class RunTold(Told):
    state: Literal["running", "finished", "stopped"]
    model: Annotated[str, Field(max_length=4096)] | None = None
    slots: Count = 0
    expected_seconds: Seconds | None = None
    makespan_seconds: Seconds | None = None
    datasets: list[DatasetTold] = Field(default=[], max_length=10_000)
    running: list[TrialTold] = Field(default=[], max_length=10_000)
    bars: list[BarTold] = Field(default=[], max_length=20_000)
    failures: list[FailureTold] = Field(default=[], max_length=10_000)
    saved: dict[Text, Seconds] | None = Field(default=None, max_length=16)


class SlotsAskedBack(BaseModel):
    """Nodes whose slots the run has to give back; an empty list lets it have them all again."""

    model_config = ConfigDict(extra="forbid")

    nodes: list[Name] = Field(max_length=100_000)
    why: Annotated[str, Field(min_length=1, max_length=1024)]


def run_or_404(session: Session, name: str) -> EvaluationRun:
    run = session.get(EvaluationRun, name)
    if run is None:
        raise Problem(404, f"no evaluation run {name!r} has told of itself")
    return run


def run_document(run: EvaluationRun) -> dict[str, Any]:
    times = {"created_at": run.created_at, "updated_at": run.updated_at}
    return {**run.document, "run": run.name, "wanted_back": run.wanted_back, **times}


@router.post("/{run}", operation_id="reportTrials", dependencies=[Depends(allow(Right.LAUNCH))])
def report_trials(run: JobName, body: RunTold, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Keep the newest progress or the report of a run whose job is registered; the answer names the nodes asked back."""
    now = service.clock()
    with service.store.writing() as session:
        launched_job(session, run, principal)
        row = session.get(EvaluationRun, run)
        if row is None:
            row = EvaluationRun(name=run, state=body.state, document={}, wanted_back=[], created_at=now, updated_at=now)
            session.add(row)
        if row.state != body.state or body.state != "running":
            publish_event(session, "trials.changed", run, {"state": body.state}, now)
        row.state, row.document, row.updated_at = body.state, body.model_dump(), now
        return {"give_back": row.wanted_back}


@router.post("/{run}/slots", operation_id="askSlotsBack", dependencies=[Depends(allow(Right.OPERATE))])
def ask_slots_back(
    run: JobName, body: SlotsAskedBack, service: ServiceDependency, principal: PrincipalDependency
) -> dict[str, Any]:
    """Ask a run for the slots of nodes that something more urgent needs: evaluation gives way first, at the cost of time only."""
    now = service.clock()
    with service.store.writing() as session:
        row = run_or_404(session, run)
        row.wanted_back = sorted(set(body.nodes))
        audit(session, principal.name, "trials.slots", run, body.why, {"nodes": row.wanted_back}, now)
        return run_document(row)


@router.get("", operation_id="listTrials", dependencies=[Depends(allow(Right.READ))])
def list_trials(
    service: ServiceDependency, limit: Annotated[int, Query(ge=1, le=500)] = 100, cursor: str | None = None
) -> dict[str, Any]:
    """Evaluation runs, the most recently heard of first."""
    offset = offset_of(cursor)
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(EvaluationRun)) or 0
        ordered = select(EvaluationRun).order_by(EvaluationRun.updated_at.desc(), EvaluationRun.name)
        rows = session.scalars(ordered.offset(offset).limit(limit)).all()
    return listing(rows, run_document, total, offset, limit)


@router.get("/{run}", operation_id="getTrials", dependencies=[Depends(allow(Right.READ))])
def get_trials(run: JobName, service: ServiceDependency) -> dict[str, Any]:
    with service.store.reading() as session:
        return run_document(run_or_404(session, run))
