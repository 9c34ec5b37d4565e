"""Actions that were taken, the audit trail, and what would be done about an incident: exact commands, carried out by nobody."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from sqlalchemy import func, select

from service.access import Right, allow
from service.api.documents import listing, offset_of
from service.api.incidents import IncidentId, incident_or_404
from service.problems import Problem, conflict
from service.state import ServiceDependency
from service.store.access import AuditEntry
from service.store.database import timestamp
from service.store.recoveries import ActionRow, RecoveryRow

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["actions"])


def action_document(row: ActionRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "action": row.action,
        "mode": row.mode,
        "state": row.state,
        "detail": row.detail,
        "job": row.job,
        "incident": str(row.incident_id),
        "generation": row.generation,
        "decided_by": row.decided_by,
        "decision": row.decision,
        "issued_at": timestamp(row.issued_at),
        "ended_at": timestamp(row.ended_at),
    }


@router.get("/actions", operation_id="listActions", dependencies=[Depends(allow(Right.READ))])
def list_actions(
    service: ServiceDependency,
    job: Annotated[str | None, Query(max_length=255)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Actions, the newest first: what, on which grounds, decided by whom, what became of it."""
    offset = offset_of(cursor)
    chosen = select(ActionRow) if job is None else select(ActionRow).where(ActionRow.job == job)
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(chosen.subquery())) or 0
        rows = session.scalars(chosen.order_by(ActionRow.id.desc()).offset(offset).limit(limit)).all()
    return listing(rows, action_document, total, offset, limit)


def audit_document(row: AuditEntry) -> dict[str, Any]:
    return {
        "id": row.id,
        "time": timestamp(row.time),
        "actor": row.actor,
        "act": row.act,
        "target": row.target,
        "reason": row.reason,
        "evidence": row.evidence,
    }


@router.get("/audit", operation_id="listAudit", dependencies=[Depends(allow(Right.READ))])
def list_audit(
    service: ServiceDependency,
    act: Annotated[str | None, Query(max_length=64)] = None,
    target: Annotated[str | None, Query(max_length=255)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Every decision of a person or of Pitstop, the newest first: who, what, on what, why and on which evidence."""
    offset = offset_of(cursor)
    chosen = select(AuditEntry)
    if act is not None:
        chosen = chosen.where(AuditEntry.act == act)
    if target is not None:
        chosen = chosen.where(AuditEntry.target == target)
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(chosen.subquery())) or 0
        rows = session.scalars(chosen.order_by(AuditEntry.id.desc()).offset(offset).limit(limit)).all()
    return listing(rows, audit_document, total, offset, limit)


@router.get(
    "/incidents/{incident_id}/dry-run",
    operation_id="dryRun",
    dependencies=[Depends(allow(Right.READ))],
    responses=conflict("The incident holds no failure of a job."),
)
def dry_run(incident_id: IncidentId, service: ServiceDependency) -> dict[str, Any]:
    """What mode auto would do about this incident's last failure now: the decision, and every command word for word."""
    with service.store.reading() as session:
        incident_or_404(session, incident_id)
        row = session.scalar(
            select(RecoveryRow).where(RecoveryRow.incident_id == incident_id).order_by(RecoveryRow.id.desc()).limit(1)
        )
        if row is None:
            raise Problem(409, f"incident {incident_id} holds no failure of a job: there is nothing to do")
        return service.recoveries.dry_run(session, row)
