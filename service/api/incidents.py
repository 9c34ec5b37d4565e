"""Incidents: the list, one with all that belongs to it, and closing by hand."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from rules.redaction import redact_text
from rules.taxonomy import Severity
from service.access import PrincipalDependency, Right, allow
from service.api.documents import listing, offset_of, timeline_document
from service.localization_documents import incident_localization
from service.problems import Problem
from service.state import ServiceDependency
from service.store.access import audit
from service.store.database import timestamp
from service.store.incidents import Alert, Failure, Incident, count_timeline, page_of_incidents, timeline
from service.store.recoveries import Notification, RecoveryRow
from service.timeline import IncidentState, incident_document, move

__all__ = ["IncidentId", "incident_or_404", "router"]

router = APIRouter(prefix="/api/v1/incidents", tags=["incidents"])

IncidentId = Annotated[int, Path(ge=1, le=2**62)]
# Of a storm's alerts, the page shows this many; all are counted.
SHOWN_ALERTS = 100


class Comment(BaseModel):
    model_config = ConfigDict(extra="ignore")

    comment: Annotated[str, Field(max_length=4096)] = ""


def incident_or_404(session: Session, incident_id: int) -> Incident:
    incident = session.get(Incident, incident_id)
    if incident is None:
        raise Problem(404, f"there is no incident {incident_id}")
    return incident


def alert_document(alert: Alert) -> dict[str, Any]:
    return {
        "fingerprint": alert.fingerprint,
        "status": alert.status,
        "labels": alert.labels,
        "annotations": alert.annotations,
        "starts_at": timestamp(alert.starts_at),
        "ends_at": timestamp(alert.ends_at),
        "received": alert.received,
    }


def failure_document(failure: Failure) -> dict[str, Any]:
    return {
        "job": failure.job,
        "attempt": failure.attempt,
        "generation": failure.generation,
        "reported_at": timestamp(failure.reported_at),
        "report": failure.report,
    }


def recovery_document(recovery: RecoveryRow) -> dict[str, Any]:
    return {
        "id": str(recovery.id),
        "attempt": recovery.attempt,
        "generation": recovery.generation,
        "stage": recovery.stage,
        "over": recovery.over,
        "directive": recovery.directive,
        "relaunches": recovery.relaunches,
        "created_at": timestamp(recovery.created_at),
        "updated_at": timestamp(recovery.updated_at),
    }


def notification_document(notification: Notification) -> dict[str, Any]:
    return {
        "audience": notification.audience,
        "recipient": notification.recipient,
        "text": notification.text,
        "channels": notification.channels,
        "created_at": timestamp(notification.created_at),
    }


@router.get("", operation_id="listIncidents", dependencies=[Depends(allow(Right.READ))])
def list_incidents(
    service: ServiceDependency,
    state: IncidentState | None = None,
    open: Annotated[bool | None, Query(description="only open ones, or only closed ones")] = None,
    severity: Severity | None = None,
    job: Annotated[str | None, Query(max_length=255)] = None,
    node: Annotated[str | None, Query(max_length=255)] = None,
    silenced: Annotated[bool | None, Query(description="only silenced ones, or only the others")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Incidents, the most recently seen first. Those merged into others are not listed."""
    offset = offset_of(cursor)
    chosen = select(Incident).where(Incident.merged_into.is_(None))
    for column, value in ((Incident.state, state), (Incident.severity, severity), (Incident.job, job), (Incident.node, node)):
        if value is not None:
            chosen = chosen.where(column == str(value))
    if open is not None:
        # By an expression where it is null: the unique index would be searched for a hundred thousand nulls.
        chosen = chosen.where(Incident.open_key.is_not(None) if open else func.coalesce(Incident.open_key, "") == "")
    if silenced is not None:
        held = and_(Incident.silenced_until.is_not(None), Incident.silenced_until > service.clock())
        chosen = chosen.where(held if silenced else ~held)
    with service.store.reading() as session:
        total, rows = page_of_incidents(session, chosen, offset, limit)
    return listing(rows, incident_document, total, offset, limit)


@router.get("/{incident_id}", operation_id="getIncident", dependencies=[Depends(allow(Right.READ))])
def get_incident(incident_id: IncidentId, service: ServiceDependency) -> dict[str, Any]:
    """One incident with its diagnosis, timeline, recoveries, notifications, failures and alerts."""
    with service.store.reading() as session:
        incident = incident_or_404(session, incident_id)
        entries, entry_count = timeline(session, incident_id), count_timeline(session, incident_id)
        alerts = session.scalars(
            select(Alert).where(Alert.incident_id == incident_id).order_by(Alert.id.desc()).limit(SHOWN_ALERTS)
        ).all()
        alert_count = session.scalar(select(func.count()).select_from(Alert).where(Alert.incident_id == incident_id)) or 0
        failures = session.scalars(select(Failure).where(Failure.incident_id == incident_id).order_by(Failure.id)).all()
        recoveries = session.scalars(
            select(RecoveryRow).where(RecoveryRow.incident_id == incident_id).order_by(RecoveryRow.id)
        ).all()
        notifications = session.scalars(
            select(Notification).where(Notification.incident_id == incident_id).order_by(Notification.id)
        ).all()
        localization = incident_localization(session, incident_id)
    return {
        **incident_document(incident),
        "diagnosis": incident.diagnosis,
        "evidence": (incident.diagnosis or {}).get("evidence", []),
        "timeline": [timeline_document(entry) for entry in entries],
        "timeline_total": entry_count,
        "failures": [failure_document(failure) for failure in failures],
        "recoveries": [recovery_document(recovery) for recovery in recoveries],
        "localization": localization,
        "notifications": [notification_document(notification) for notification in notifications],
        "alerts": {"total": alert_count, "items": [alert_document(alert) for alert in alerts]},
    }


@router.post("/{incident_id}/resolve", operation_id="resolveIncident", dependencies=[Depends(allow(Right.OPERATE))])
def resolve_incident(
    incident_id: IncidentId, service: ServiceDependency, principal: PrincipalDependency, body: Comment | None = None
) -> dict[str, Any]:
    """Close an incident by hand."""
    comment = redact_text(body.comment) if body else ""
    now = service.clock()
    with service.store.writing() as session:
        incident = incident_or_404(session, incident_id)
        why = f"by hand{': ' + comment if comment else ''}"
        if move(session, incident, IncidentState.RESOLVED, why, actor=principal.name, at=now):
            audit(session, principal.name, "incident.resolve", str(incident_id), comment, at=now)
        return incident_document(incident)
