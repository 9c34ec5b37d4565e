"""What is sent, what was done and by whom, and the settings that people change."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select

from service.access import PrincipalDependency, Right, allow
from service.api.approvals import modes_document
from service.dashboard.fleet_pages import Offset, following
from service.dashboard.rendering import page
from service.situations import frozen
from service.state import ServiceDependency
from service.store.access import AuditEntry
from service.store.logs import Origin
from service.store.recoveries import ActionRow

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[Depends(allow(Right.READ))])

ACTIONS, AUDITED, SOURCES = 50, 100, 500


@router.get("/collectors")
def collectors_page(service: ServiceDependency) -> HTMLResponse:
    with service.store.reading() as session:
        origins = session.scalars(select(Origin).order_by(Origin.last_seen, Origin.name).limit(SOURCES)).all()
    return page("collectors.html", origins=origins, now=service.clock())


@router.get("/actions")
def actions_page(service: ServiceDependency, offset: Offset = 0, audit: Offset = 0) -> HTMLResponse:
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(ActionRow)) or 0
        actions = session.scalars(select(ActionRow).order_by(ActionRow.id.desc()).offset(offset).limit(ACTIONS)).all()
        audited = session.scalar(select(func.count()).select_from(AuditEntry)) or 0
        entries = session.scalars(select(AuditEntry).order_by(AuditEntry.id.desc()).offset(audit).limit(AUDITED)).all()
    return page(
        "actions.html",
        actions=actions,
        entries=entries,
        total=total,
        next_offset=following(offset, ACTIONS, total),
        audited=audited,
        next_audit=following(audit, AUDITED, audited),
    )


@router.get("/settings")
def settings_page(service: ServiceDependency, principal: PrincipalDependency) -> HTMLResponse:
    with service.store.reading() as session:
        why, modes = frozen(session), modes_document(session, None)["modes"]
    channels = service.reports["notifications"]() if "notifications" in service.reports else None
    checks = {name: check() for name, check in service.checks.items()}
    memory, model = service.reports["memory"](), service.reports["model"]()
    return page(
        "settings.html",
        principal=principal,
        frozen=why,
        modes=modes,
        checks=checks,
        channels=channels,
        memory=memory,
        model=model,
    )
