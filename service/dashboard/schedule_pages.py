"""The schedule of a pipeline that goes on without lost nodes, as a picture; linked from the plan page."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from recovery.planning.pipeline.drawing import svg
from recovery.planning.pipeline.model import PipelineError
from recovery.planning.pipeline.planner import plan
from recovery.planning.tasks import PlanError
from service.access import Right, allow
from service.problems import Problem
from service.state import ServiceDependency

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[Depends(allow(Right.READ))])

POLICY = {"Content-Security-Policy": "default-src 'none'"}


@router.get("/plan/schedule.svg")
def schedule(service: ServiceDependency, what_if: Annotated[list[str] | None, Query(max_length=200)] = None) -> Response:
    """Of the first job that was hit and says how its pipelines are (`layout.pipeline_schedule`)."""
    try:
        proposal, _ = service.plans.what_if(what_if or [])
    except PlanError as error:
        raise Problem(404, str(error)) from None
    for task in proposal.after.placed:
        if not task.hit or task.pipeline is None:
            continue
        gone = [index for index, node in enumerate(task.nodes) if not proposal.after.sites[node].usable]
        failed = task.pipeline.problem.failed.union(*(task.pipeline.workers_of(index) for index in gone))
        try:
            found = plan(replace(task.pipeline.problem, failed=failed), seconds=0)
        except PipelineError as error:
            raise Problem(404, f"{task.name}: {error}") from None
        drawn = svg(found.schedule, f"{task.name}, at best {found.bound}")
        return Response(drawn, media_type="image/svg+xml", headers=POLICY)
    raise Problem(404, "no job that was hit says how its pipelines are (layout.pipeline_schedule)")
