"""What is known and expected: silences, and planned maintenance."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select

from service.access import Right, allow
from service.dashboard.rendering import page
from service.state import ServiceDependency
from service.store.fleet import MaintenanceRow
from service.store.incidents import Incident, Silence

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[Depends(allow(Right.READ))])

SHOWN = 100


@router.get("/silences")
def silences_page(
    service: ServiceDependency,
    matchers: Annotated[str, Query(max_length=4096, description="what the form begins with")] = "",
) -> HTMLResponse:
    """Silences that hold or will, with what each holds back; those that ended last; planned work that is not over."""
    now = service.clock()
    with service.store.reading() as session:
        holding = session.scalars(
            select(Silence).where(Silence.ends_at > now).order_by(Silence.ends_at, Silence.id).limit(SHOWN)
        ).all()
        ended = session.scalars(
            select(Silence).where(Silence.ends_at <= now).order_by(Silence.ends_at.desc(), Silence.id.desc()).limit(10)
        ).all()
        held = select(Incident.silence_id, func.count()).where(Incident.open_key.is_not(None), Incident.silenced_until > now)
        held_back = {row[0]: row[1] for row in session.execute(held.group_by(Incident.silence_id))}
        windows = session.scalars(
            select(MaintenanceRow).where(MaintenanceRow.end_at > now).order_by(MaintenanceRow.start_at).limit(SHOWN)
        ).all()
    return page("silences.html", now=now, holding=holding, ended=ended, held_back=held_back, windows=windows, matchers=matchers)
