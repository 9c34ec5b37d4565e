"""What people say about incidents: these are one, these are two, this verdict is wrong."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from rules.diagnosis import Source
from rules.redaction import redact_text
from rules.taxonomy import NONE, load_taxonomy
from service.access import PrincipalDependency, Right, allow
from service.api.incidents import IncidentId, incident_or_404
from service.incidents import digest, open_incident
from service.joining import APART, TOGETHER, job_key, merge, remember
from service.problems import Problem, conflict
from service.state import ServiceDependency
from service.store.access import audit
from service.store.incidents import Alert, Failure, Incident
from service.store.recoveries import RecoveryRow
from service.timeline import add_timeline, announce, incident_document

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/incidents", tags=["incidents"], dependencies=[Depends(allow(Right.OPERATE))])

Comment = Annotated[str, Field(max_length=4096)]


class Merge(BaseModel):
    model_config = ConfigDict(extra="forbid")

    into: Annotated[int, Field(ge=1, le=2**62)]
    comment: Comment = ""


class Split(BaseModel):
    """What leaves the incident: alerts by fingerprint, failures of the job by attempt and generation."""

    model_config = ConfigDict(extra="forbid")

    alerts: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=1000)] = []
    failures: Annotated[
        list[tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], Annotated[int, Field(ge=0, le=2**31 - 1)]]], Field(max_length=1000)
    ] = []
    comment: Comment = ""


class Feedback(BaseModel):
    model_config = ConfigDict(extra="forbid")

    right: bool
    reason: Annotated[str, Field(max_length=64)] | None = None
    comment: Comment = ""


@router.post(
    "/{incident_id}/merge",
    operation_id="mergeIncident",
    responses=conflict("One of them was joined to another before, or they are one."),
)
def merge_incident(
    incident_id: IncidentId, body: Merge, service: ServiceDependency, principal: PrincipalDependency
) -> dict[str, Any]:
    """Join this incident to another; later ones of the same two causes are joined too."""
    now, comment = service.clock(), redact_text(body.comment)
    with service.store.writing() as session:
        source, target = incident_or_404(session, incident_id), incident_or_404(session, body.into)
        if source.id == target.id or source.merged_into is not None or target.merged_into is not None:
            raise Problem(409, "an incident that was joined to another, or to itself, cannot be joined")
        remember(session, source.fingerprint, target.fingerprint, TOGETHER, by=principal.name, comment=comment, now=now)
        merge(session, source, target, f"by hand{': ' + comment if comment else ''}", actor=principal.name, now=now)
        audit(session, principal.name, "incident.merge", str(incident_id), comment, {"into": body.into}, now)
        return incident_document(target)


@router.post("/{incident_id}/split", status_code=201, operation_id="splitIncident")
def split_incident(
    incident_id: IncidentId, body: Split, service: ServiceDependency, principal: PrincipalDependency
) -> dict[str, Any]:
    """Take alerts and failures out into an incident of their own; later ones of the same keys stay apart."""
    now, comment = service.clock(), redact_text(body.comment)
    with service.store.writing() as session:
        incident = incident_or_404(session, incident_id)
        alerts, failures = parts_of(session, incident, body)
        part = "failure" if failures else "alert"
        text = f"divided from incident {incident_id} by {principal.name}" + (f": {comment}" if comment else "")
        key = digest("split", incident.fingerprint, sorted(body.alerts), sorted(body.failures), now)
        own = open_incident(
            session,
            kind=part,
            fingerprint=key,
            summary=text,
            now=now,
            job=incident.job,
            attempt=incident.attempt,
            node=incident.node,
        )
        for alert in alerts:
            alert.incident_id = own.id
            # The key under which this alert opens an incident of its own, see service/alerts.py.
            for name in {digest("alert", alert.fingerprint), incident.fingerprint if incident.kind == "alert" else ""} - {""}:
                remember(session, name, job_key(incident.job), APART, by=principal.name, comment=comment, now=now)
        for failure in failures:
            failure.incident_id = own.id
            for row in session.scalars(
                select(RecoveryRow).where(
                    RecoveryRow.job == failure.job,
                    RecoveryRow.attempt == failure.attempt,
                    RecoveryRow.generation == failure.generation,
                )
            ):
                row.incident_id = own.id
        if failures:
            remember(session, incident.fingerprint, incident.fingerprint, APART, by=principal.name, comment=comment, now=now)
        incident.occurrences = max(1, incident.occurrences - len(alerts) - len(failures))
        add_timeline(
            session, incident.id, "split", f"incident {own.id} {text}", actor=principal.name, data={"into": own.id}, at=now
        )
        announce(session, incident, "incident.updated", now)
        audit(session, principal.name, "incident.split", str(incident_id), comment, {"into": own.id}, now)
        return incident_document(own)


def parts_of(session: Session, incident: Incident, body: Split) -> tuple[list[Alert], list[Failure]]:
    alerts = list(session.scalars(select(Alert).where(Alert.incident_id == incident.id, Alert.fingerprint.in_(body.alerts))))
    all_failures = list(session.scalars(select(Failure).where(Failure.incident_id == incident.id)))
    wanted = {tuple(pair) for pair in body.failures}
    failures = [failure for failure in all_failures if (failure.attempt, failure.generation) in wanted]
    if not alerts and not failures:
        raise Problem(422, "name alerts or failures of this incident that are to leave it")
    others = session.scalars(select(Alert.id).where(Alert.incident_id == incident.id)).all()
    if len(alerts) == len(others) and len(failures) == len(all_failures):
        raise Problem(422, "something must stay in the incident")
    return alerts, failures


@router.post("/{incident_id}/feedback", operation_id="giveFeedback")
def give_feedback(
    incident_id: IncidentId, body: Feedback, service: ServiceDependency, principal: PrincipalDependency
) -> dict[str, Any]:
    """Say whether the verdict is right; with a reason of the taxonomy it becomes the operator's verdict."""
    now, comment = service.clock(), redact_text(body.comment)
    taxonomy = load_taxonomy()
    if body.reason is not None and (body.reason not in taxonomy or body.reason == NONE):
        raise Problem(422, f"reason {body.reason!r} is not in the taxonomy")
    with service.store.writing() as session:
        incident = incident_or_404(session, incident_id)
        said = "right" if body.right else "wrong"
        if body.reason is not None and body.reason != incident.reason:
            reason = taxonomy[body.reason]
            said += f", it is {reason.name} and not {incident.reason}"
            incident.reason, incident.category, incident.component = reason.name, reason.category.value, reason.component
            incident.severity, incident.remedy = reason.severity.value, reason.remedy.value
            incident.source, incident.confidence = Source.OPERATOR.value, 1.0
        data = {"right": body.right, "reason": body.reason, "comment": comment}
        text = f"the verdict is {said}" + (f": {comment}" if comment else "")
        add_timeline(session, incident.id, "feedback", text, actor=principal.name, data=data, at=now)
        announce(session, incident, "incident.updated", now)
        audit(session, principal.name, "incident.feedback", str(incident_id), text, data, now)
        return incident_document(incident)
