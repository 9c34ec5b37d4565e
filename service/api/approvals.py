"""Operators' say in recoveries: approve or reject what waits, freeze everything, set how far each kind of action may go."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from recovery.decision import FAR_ACTIONS, Action, Mode
from recovery.node_return import Part
from recovery.states import Approved, Rejected
from rules.redaction import redact_text
from service.access import Principal, PrincipalDependency, Right, allow
from service.api.incidents import IncidentId, incident_or_404
from service.api.jobs import job_or_404
from service.node_returns import return_terms
from service.problems import Problem, conflict
from service.situations import FREEZE, MODES, frozen, modes_of
from service.state import Service, ServiceDependency
from service.store.access import Switch, audit
from service.store.events import publish_event
from service.store.jobs import Job
from service.store.recoveries import RecoveryRow

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["control"])

OPERATE = [Depends(allow(Right.OPERATE))]
NO_JOB: dict[int | str, dict[str, Any]] = {404: {"description": "No such job is registered."}}
NOTHING_WAITS = conflict("Nothing waits for approval.")


class Comment(BaseModel):
    model_config = ConfigDict(extra="ignore")

    comment: Annotated[str, Field(max_length=4096)] = ""


class Freeze(BaseModel):
    model_config = ConfigDict(extra="ignore")

    on: bool
    why: Annotated[str, Field(max_length=4096)] = ""


class Modes(BaseModel):
    """The modes to set, by kind of action; null goes back to the default. `job`: for that job only."""

    model_config = ConfigDict(extra="forbid")

    modes: dict[Action | Part, Mode | None] = Field(min_length=1)
    job: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    why: Annotated[str, Field(min_length=1, max_length=4096)]


def waiting_recovery(service: Service, session: Session, incident_id: int) -> RecoveryRow:
    """The recovery of this incident that waits for a person."""
    incident = incident_or_404(session, incident_id)
    rows = session.scalars(
        select(RecoveryRow)
        .where(RecoveryRow.incident_id == incident_id, RecoveryRow.over.is_(False))
        .order_by(RecoveryRow.id.desc())
    )
    for row in rows:
        if service.recoveries.state_of(row).awaits_approval:
            return row
    raise Problem(409, f"nothing about incident {incident_id} waits for approval: it is {incident.state.replace('_', ' ')}")


def check_reach(principal: Principal, action: Action | Part) -> None:
    """403 where a caller that nobody vouched for would reach beyond a job."""
    if principal.capped and (action in FAR_ACTIONS or isinstance(action, Part)):
        raise Problem(403, f"{action.value} reaches beyond a job: it takes an operator's token")


@router.post("/incidents/{incident_id}/approve", operation_id="approveAction", dependencies=OPERATE, responses=NOTHING_WAITS)
def approve(
    incident_id: IncidentId, service: ServiceDependency, principal: PrincipalDependency, body: Comment | None = None
) -> dict[str, Any]:
    """Let the action that waits go ahead."""
    return settle(service, principal, incident_id, body, approved=True)


@router.post("/incidents/{incident_id}/reject", operation_id="rejectAction", dependencies=OPERATE, responses=NOTHING_WAITS)
def reject(
    incident_id: IncidentId, service: ServiceDependency, principal: PrincipalDependency, body: Comment | None = None
) -> dict[str, Any]:
    """Take the action that waits off the table: what to do is decided again without it."""
    return settle(service, principal, incident_id, body, approved=False)


def settle(service: Service, principal: Principal, incident_id: int, body: Comment | None, *, approved: bool) -> dict[str, Any]:
    comment = redact_text(body.comment) if body else ""
    with service.store.writing() as session:
        row = waiting_recovery(service, session, incident_id)
        decision = service.recoveries.state_of(row).decision
        if decision is not None:
            check_reach(principal, decision.action)
            evidence = {"recovery": row.id, "action": decision.action.value, "why": decision.sentence}
            verb = "approve" if approved else "reject"
            audit(session, principal.name, f"action.{verb}", str(incident_id), comment, evidence, service.clock())
        now = service.clock()
        event = Approved(now, principal.name) if approved else Rejected(now, principal.name, comment or "no reason given")
        row = service.recoveries.tell(session, row.id, event)
        return {"incident": str(row.incident_id), "recovery": row.id, "stage": row.stage}


@router.post("/freeze", operation_id="freeze", dependencies=OPERATE)
def freeze(body: Freeze, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Stop all action at the next safe point, or let it go on. Survives restarts; diagnosis goes on meanwhile."""
    why, now = redact_text(body.why), service.clock()
    with service.store.writing() as session:
        session.merge(Switch(name=FREEZE, value={"on": body.on, "why": why}, set_by=principal.name, set_at=now))
        audit(session, principal.name, "freeze" if body.on else "unfreeze", "pitstop", why, at=now)
        publish_event(session, "freeze", "pitstop", {"on": body.on, "by": principal.name, "why": why}, now)
        session.flush()
        return {"frozen": body.on, "why": frozen(session)}


@router.get("/freeze", operation_id="getFreeze", dependencies=[Depends(allow(Right.READ))])
def get_freeze(service: ServiceDependency) -> dict[str, Any]:
    with service.store.reading() as session:
        why = frozen(session)
    return {"frozen": why is not None, "why": why}


@router.get("/modes", operation_id="getModes", dependencies=[Depends(allow(Right.READ))], responses=NO_JOB)
def get_modes(service: ServiceDependency, job: str | None = None) -> dict[str, Any]:
    """The mode of each kind of action that holds for the cluster, or for one job."""
    with service.store.reading() as session:
        return modes_document(session, None if job is None else job_or_404(session, job))


def modes_document(session: Session, job: Job | None) -> dict[str, Any]:
    """Modes of actions, and of the parts of a node's return, which belong to no job."""
    modes: dict[str, str] = {action.value: mode.value for action, mode in modes_of(session, job).items()}
    if job is None:
        modes |= {part.value: mode.value for part, mode in return_terms(session).modes.items()}
    return {"job": None if job is None else job.name, "modes": modes}


@router.put("/modes", operation_id="setModes", dependencies=OPERATE, responses=NO_JOB)
def set_modes(body: Modes, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Set how far kinds of action may go by themselves, for the cluster or for one job."""
    for action in body.modes:
        check_reach(principal, action)
    why, now = redact_text(body.why), service.clock()
    with service.store.writing() as session:
        job = None if body.job is None else job_or_404(session, body.job)
        switch = session.get(Switch, MODES)
        before = dict((job.modes if job is not None else switch.value if switch is not None else {}) or {})
        named = {action.value for action in body.modes}
        after = {key: value for key, value in before.items() if key not in named}
        after |= {action.value: mode.value for action, mode in body.modes.items() if mode is not None}
        if job is not None:
            job.modes = after
        else:
            session.merge(Switch(name=MODES, value=after, set_by=principal.name, set_at=now))
        audit(session, principal.name, "modes.set", body.job or "cluster", why, {"before": before, "after": after}, now)
        publish_event(session, "modes.set", body.job or "cluster", {"modes": after, "by": principal.name}, now)
        session.flush()
        return modes_document(session, job)
