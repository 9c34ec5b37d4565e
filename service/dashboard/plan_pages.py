"""The plan page: who runs where now and who should, what else could be done, what would be if; and the list of proposals."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse
from sqlalchemy import select

from recovery.planning.document import proposal_document
from recovery.planning.tasks import PlanError
from service.access import Right, allow
from service.dashboard.rendering import page
from service.state import ServiceDependency
from service.store.plans import UNDECIDED, PlanRow

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[Depends(allow(Right.READ))])

SHOWN = 30
WIDTH = 100.0


def bars(proposal: dict[str, Any]) -> list[dict[str, Any]]:
    """Each alternative with its WAF over time as rectangles of a strip, `WIDTH` wide and at most 20 high."""
    highest = max((part["waf"] for item in proposal["alternatives"] for part in item["waf"]), default=0.0) or 1.0
    found = []
    for item in proposal["alternatives"]:
        total, at, strips = sum(part["seconds"] for part in item["waf"]) or 1.0, 0.0, []
        for part in item["waf"]:
            width, height = WIDTH * part["seconds"] / total, 20.0 * part["waf"] / highest
            strips.append({"x": at, "y": 20.0 - height, "width": width, "height": height})
            at += width
        found.append({**item, "strips": strips})
    return found


@router.get("/plan")
def plan_page(service: ServiceDependency, what_if: Annotated[list[str] | None, Query(max_length=200)] = None) -> HTMLResponse:
    asked, problem, proposal = what_if or [], None, None
    notes: tuple[str, ...] = ()
    sites: list[dict[str, Any]] = []
    try:
        found, stored = service.plans.what_if(asked)
        proposal, notes = proposal_document(found), stored.notes
        owners, after = found.before.owners, {node: name for name, nodes in found.placement.nodes.items() for node in nodes}
        off = {trigger.subject for trigger in found.triggers}
        sites = [
            {
                "name": name,
                "switch": site.switch or "no switch named",
                "owner": owners.get(name),
                "then": after.get(name),
                "usable": site.usable,
                "spare": site.is_spare,
                "off": name in off,
            }
            for name, site in sorted(found.before.sites.items())
        ]
    except PlanError as error:
        problem = str(error)
    with service.store.reading() as session:
        plans = session.scalars(select(PlanRow).order_by(PlanRow.id.desc()).limit(SHOWN)).all()
    switches = {site["switch"]: [other for other in sites if other["switch"] == site["switch"]] for site in sites}
    return page(
        "plan.html",
        asked=asked,
        problem=problem,
        proposal=proposal,
        alternatives=bars(proposal) if proposal else [],
        switches=switches,
        notes=notes,
        plans=plans,
        waiting=next((plan for plan in plans if plan.state in UNDECIDED), None),
    )
