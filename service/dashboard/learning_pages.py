"""What is learnt: candidate rules with their back-test, what the rungs of the ladder cost, and the state of memory and model."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rules.taxonomy import NONE, UNNAMED, load_taxonomy
from service.access import Right, allow
from service.api.candidates import CandidateId, candidate_or_404
from service.candidates import CandidateState, candidate_document, hits_of
from service.dashboard.fleet_pages import Offset, following
from service.dashboard.rendering import page
from service.state import ServiceDependency
from service.store.candidates import CandidateRow
from service.store.incidents import TimelineEntry

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[Depends(allow(Right.READ))])

SHOWN = 50
# Of the ladder's story the newest climbs are counted.
CLIMBS = 2_000
RUNGS = ("memory", "llm")


@dataclass(frozen=True, slots=True)
class RungCost:
    """One rung over the newest climbs; seconds are medians."""

    rung: str
    asked: int
    named: int
    seconds: float
    tokens: int


def rung_costs(session: Session) -> list[RungCost]:
    """What memory and model were asked, named and took. A climb with the model repeats the rungs before it: each counts once."""
    query = select(TimelineEntry).where(TimelineEntry.kind.in_(("ladder", "opinion"))).order_by(TimelineEntry.id.desc())
    said: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in session.scalars(query.limit(CLIMBS)):
        own = "llm" if entry.kind == "opinion" else "memory"
        said[own] += [rung for rung in entry.data["rungs"] if rung["rung"] == own]
    return [
        RungCost(
            name,
            len(rungs),
            sum(rung["reason"] is not None for rung in rungs),
            median(rung["seconds"] for rung in rungs),
            sum(rung["tokens"] for rung in rungs),
        )
        for name in RUNGS
        if (rungs := said[name])
    ]


@router.get("/learning")
def learning_page(
    service: ServiceDependency, state: Annotated[CandidateState | None, Query()] = None, offset: Offset = 0
) -> HTMLResponse:
    chosen = select(CandidateRow)
    if state is not None:
        chosen = chosen.where(CandidateRow.state == state.value)
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(chosen.subquery())) or 0
        rows = session.scalars(chosen.order_by(CandidateRow.id.desc()).offset(offset).limit(SHOWN)).all()
        candidates = [candidate_document(session, row) for row in rows]
        counted = session.execute(select(CandidateRow.state, func.count()).group_by(CandidateRow.state)).all()
        costs = rung_costs(session)
    found = {row[0]: row[1] for row in counted}
    return page(
        "learning.html",
        candidates=candidates,
        total=total,
        next_offset=following(offset, SHOWN, total),
        states={name.value: found.get(name.value, 0) for name in CandidateState},
        chosen=state.value if state else None,
        costs=costs,
        memory=service.reports["memory"](),
        model=service.reports["model"](),
        reasons=sorted(name for name in load_taxonomy().reasons if name not in UNNAMED | {NONE}),
    )


@router.get("/learning/{number}")
def candidate_page(number: CandidateId, service: ServiceDependency) -> HTMLResponse:
    with service.store.reading() as session:
        row = candidate_or_404(session, number)
        document = candidate_document(session, row)
        hits = hits_of(session, row.id)[:SHOWN]
        versions = session.scalars(
            select(CandidateRow).where(CandidateRow.code == row.code).order_by(CandidateRow.version.desc())
        ).all()
    return page("candidate.html", candidate=document, row=row, hits=hits, versions=versions)
