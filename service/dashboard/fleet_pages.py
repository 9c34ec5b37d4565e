"""Jobs and nodes: the lists, and one of each with all that belongs to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select

from service.access import Right, allow
from service.api.jobs import JobName, job_or_404
from service.api.nodes import NodeName
from service.dashboard.rendering import page
from service.problems import Problem
from service.state import ServiceDependency
from service.store.fleet import NodePlace, NodeReturn
from service.store.incidents import Incident
from service.store.jobs import Attempt, GpuRow, Job, JobState, Node, NodeAlias, count_jobs, rank_states

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[Depends(allow(Right.READ))])

JOBS, NODES, SHOWN = 50, 400, 50
Offset = Annotated[int, Query(ge=0, le=10**9)]


def following(offset: int, size: int, total: int) -> int | None:
    """Where the next page begins, if there is one."""
    return offset + size if offset + size < total else None


@router.get("/jobs")
def jobs_page(service: ServiceDependency, state: JobState | None = None, offset: Offset = 0) -> HTMLResponse:
    chosen = select(Job) if state is None else select(Job).where(Job.state == state.value)
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(chosen.subquery())) or 0
        jobs = session.scalars(chosen.order_by(Job.created_at.desc(), Job.name).offset(offset).limit(JOBS)).all()
        counts = count_jobs(session)
    return page("jobs.html", jobs=jobs, counts=counts, state=state, total=total, next_offset=following(offset, JOBS, total))


@router.get("/jobs/{job}")
def job_page(job: JobName, service: ServiceDependency) -> HTMLResponse:
    with service.store.reading() as session:
        row = job_or_404(session, job)
        attempts = session.scalars(select(Attempt).where(Attempt.job == job).order_by(Attempt.number.desc()).limit(SHOWN)).all()
        incidents = session.scalars(select(Incident).where(Incident.job == job).order_by(Incident.id.desc()).limit(SHOWN)).all()
        ranks = rank_states(session, job)
    return page("job.html", job=row, attempts=attempts, incidents=incidents, ranks=ranks)


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """A node as the grid shows it: `standing` is its colour's name, `word` the same for those who see none."""

    id: str
    standing: str
    word: str
    seen_at: float
    clock_offset: float | None


def standing_of(node: Node, out: NodeReturn | None, now: float) -> NodeStanding:
    if out is not None:
        standing, word = "out", f"out of service: {out.phase.replace('_', ' ')}"
    elif node.lease_until is None or node.lease_until < now:
        standing, word = "silent", "silent"
    else:
        standing, word = "ready", node.state
    return NodeStanding(node.id, standing, word, node.seen_at, node.clock_offset_seconds)


@router.get("/nodes")
def nodes_page(service: ServiceDependency, offset: Offset = 0) -> HTMLResponse:
    now = service.clock()
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(Node)) or 0
        silent = session.scalar(select(func.count()).select_from(Node).where(Node.lease_until < now)) or 0
        out = {row.node: row for row in session.scalars(select(NodeReturn).where(NodeReturn.over.is_(False)))}
        rows = session.scalars(select(Node).order_by(Node.id).offset(offset).limit(NODES)).all()
    nodes = [standing_of(row, out.get(row.id), now) for row in rows]
    counts = {"ready": total - silent, "silent": silent, "out": len(out)}
    return page("nodes.html", nodes=nodes, counts=counts, total=total, next_offset=following(offset, NODES, total))


@router.get("/nodes/{node}")
def node_page(node: NodeName, service: ServiceDependency) -> HTMLResponse:
    now = service.clock()
    with service.store.reading() as session:
        row = session.get(Node, node)
        if row is None:
            raise Problem(404, f"no agent of a node {node!r} has reported")
        aliases = session.scalars(select(NodeAlias.alias).where(NodeAlias.node == node).order_by(NodeAlias.alias)).all()
        gpus = session.scalars(select(GpuRow).where(GpuRow.node == node).order_by(GpuRow.index)).all()
        returns = session.scalars(
            select(NodeReturn).where(NodeReturn.node == node).order_by(NodeReturn.id.desc()).limit(SHOWN)
        ).all()
        incidents = session.scalars(select(Incident).where(Incident.node == node).order_by(Incident.id.desc()).limit(SHOWN)).all()
        place = session.get(NodePlace, node)
        states = {item.id: service.recoveries.returns.state_of(item) for item in returns}
    out = next((item for item in returns if not item.over), None)
    return page(
        "node.html",
        node=standing_of(row, out, now),
        aliases=aliases,
        gpus=gpus,
        returns=returns,
        incidents=incidents,
        place=place,
        out=None if out is None else states[out.id],
        trails={
            number: [{"phase": phase, "at": at, "why": why} for phase, at, why in state.trail] for number, state in states.items()
        },
    )
