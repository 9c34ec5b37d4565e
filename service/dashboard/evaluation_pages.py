"""Evaluation runs: the list, and one with its datasets and its drawing."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from sqlalchemy import func, select

from evaluation.gantt import Bar, draw
from service.access import Right, allow
from service.api.jobs import JobName
from service.api.trials import run_or_404
from service.dashboard.fleet_pages import Offset, following
from service.dashboard.rendering import page
from service.state import ServiceDependency
from service.store.evaluations import EvaluationRun
from service.store.incidents import Incident

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[Depends(allow(Right.READ))])

RUNS, SHOWN = 50, 20


@router.get("/trials")
def trials_page(service: ServiceDependency, offset: Offset = 0) -> HTMLResponse:
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(EvaluationRun)) or 0
        ordered = select(EvaluationRun).order_by(EvaluationRun.updated_at.desc(), EvaluationRun.name)
        runs = session.scalars(ordered.offset(offset).limit(RUNS)).all()
    return page("trials.html", runs=runs, total=total, next_offset=following(offset, RUNS, total))


@router.get("/trials/{run}")
def run_page(run: JobName, service: ServiceDependency) -> HTMLResponse:
    with service.store.reading() as session:
        row = run_or_404(session, run)
        incidents = session.scalars(select(Incident).where(Incident.job == run).order_by(Incident.id.desc()).limit(SHOWN)).all()
    bars = [Bar(bar["row"], bar["label"], bar["start"], bar["end"], bar["failed"]) for bar in row.document["bars"]]
    # draw() escapes what the run told; nothing of it is markup.
    drawing = Markup(draw(bars, f"{run}: what ran where and when")) if bars else None
    return page("trial_run.html", run=row, told=row.document, drawing=drawing, incidents=incidents)
