"""Plans of who runs where: what would be done if, proposals and their approval; and the weight of a job, which plans follow."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from recovery.decision import Action
from recovery.planning.document import proposal_document
from recovery.planning.tasks import PlanError
from rules.redaction import redact_text
from service.access import PrincipalDependency, Right, allow
from service.api.approvals import Comment, check_reach
from service.api.documents import listing, offset_of
from service.api.jobs import JobName, job_or_404
from service.plans import PlanRefused
from service.problems import Problem, conflict
from service.state import Service, ServiceDependency
from service.store.access import audit
from service.store.database import timestamp
from service.store.events import publish_event
from service.store.plans import PlanRow, PlanState

__all__ = ["plan_document", "router"]

router = APIRouter(prefix="/api/v1", tags=["plans"])

PlanId = Annotated[int, Path(ge=1, le=2**62)]
OPERATE = [Depends(allow(Right.OPERATE))]
SETTLED = conflict("The plan is stale, or settled.")
READ = [Depends(allow(Right.READ))]


class Question(BaseModel):
    """`what_if`: 'node n17 lost', 'task a finished', ...; none: the present state. `propose`: store the answer for approval."""

    model_config = ConfigDict(extra="forbid")

    what_if: list[Annotated[str, Field(min_length=1, max_length=600)]] = Field(default=[], max_length=1_000)
    propose: bool = False


class Weight(BaseModel):
    """A job's priority; 0.5 to 2.0 is what plans are usually given."""

    model_config = ConfigDict(extra="forbid")

    weight: Annotated[float, Field(ge=0.01, le=100)]
    why: Annotated[str, Field(min_length=1, max_length=4096)]


def plan_document(row: PlanRow, *, whole: bool = False) -> dict[str, Any]:
    document = {
        "id": row.id,
        "state": row.state,
        "cause": row.cause,
        "why": row.why,
        "stamp": row.stamp,
        "incident": None if row.incident_id is None else str(row.incident_id),
        "parts": row.parts,
        "decided_by": row.decided_by,
        "created_at": timestamp(row.created_at),
        "decided_at": timestamp(row.decided_at),
        "ended_at": timestamp(row.ended_at),
    }
    return document | ({"proposal": row.document} if whole else {"waf": row.document["waf"]})


def plan_or_404(session: Session, plan: int) -> PlanRow:
    row = session.get(PlanRow, plan)
    if row is None:
        raise Problem(404, f"there is no plan {plan}")
    return row


@router.get("/plans", operation_id="listPlans", dependencies=READ)
def list_plans(
    service: ServiceDependency,
    state: PlanState | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Proposals and what became of them, the newest first."""
    offset = offset_of(cursor)
    chosen = select(PlanRow) if state is None else select(PlanRow).where(PlanRow.state == state.value)
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(chosen.subquery())) or 0
        rows = session.scalars(chosen.order_by(PlanRow.id.desc()).offset(offset).limit(limit)).all()
    return listing(rows, plan_document, total, offset, limit)


@router.get("/plans/{plan}", operation_id="getPlan", dependencies=READ)
def get_plan(plan: PlanId, service: ServiceDependency) -> dict[str, Any]:
    with service.store.reading() as session:
        return plan_document(plan_or_404(session, plan), whole=True)


@router.post(
    "/plans",
    operation_id="askPlan",
    dependencies=READ,
    responses=conflict("Nothing can be proposed now.")
    | {201: {"description": "A proposal was stored.", "model": dict[str, Any]}},
)
def ask_plan(body: Question, service: ServiceDependency, principal: PrincipalDependency, response: Response) -> dict[str, Any]:
    """What should run where now, or if something happened. Stores nothing, unless `propose` asks for a proposal to approve."""
    try:
        if not body.propose:
            proposal, stored = service.plans.what_if(body.what_if)
            return proposal_document(proposal) | {"notes": list(stored.notes)}
        if body.what_if:
            raise Problem(422, "propose: only what is to be done now can be proposed, without what_if")
        if Right.OPERATE not in principal.rights:
            raise Problem(403, "a plan is proposed by an operator")
        check_reach(principal, Action.RECONFIGURE)
        with service.store.writing() as session:
            row = service.plans.propose_now(session, principal.name)
            response.status_code = 201
            return plan_document(row, whole=True)
    except PlanError as problem:
        raise Problem(422, str(problem)) from None
    except PlanRefused as refused:
        raise Problem(409, str(refused)) from None


@router.post("/plans/{plan}/approve", operation_id="approvePlan", dependencies=OPERATE, responses=SETTLED)
def approve_plan(
    plan: PlanId, service: ServiceDependency, principal: PrincipalDependency, body: Comment | None = None
) -> dict[str, Any]:
    """Carry a proposal out, if the cluster is still as it was when it was made."""
    return settle(service, principal, plan, body, approved=True)


@router.post("/plans/{plan}/reject", operation_id="rejectPlan", dependencies=OPERATE, responses=SETTLED)
def reject_plan(
    plan: PlanId, service: ServiceDependency, principal: PrincipalDependency, body: Comment | None = None
) -> dict[str, Any]:
    return settle(service, principal, plan, body, approved=False)


def settle(
    service: Service, principal: PrincipalDependency, plan: int, body: Comment | None, *, approved: bool
) -> dict[str, Any]:
    check_reach(principal, Action.RECONFIGURE)
    comment = redact_text(body.comment) if body else ""
    try:
        with service.store.writing() as session:
            plan_or_404(session, plan)
            act = service.plans.approve if approved else service.plans.reject
            document = plan_document(act(session, plan, principal.name, comment))
    except PlanRefused as refused:
        raise Problem(409, str(refused)) from None
    if document["state"] == PlanState.STALE:
        raise Problem(409, f"plan {plan} is stale: the cluster changed since it was made; ask for a new one")
    return document


@router.put("/jobs/{job}/weight", operation_id="weighJob", dependencies=OPERATE)
def weigh_job(job: JobName, body: Weight, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Set a job's priority. Plans follow it."""
    check_reach(principal, Action.RECONFIGURE)
    why, now = redact_text(body.why), service.clock()
    with service.store.writing() as session:
        row = job_or_404(session, job)
        audit(session, principal.name, "job.weight", job, why, {"before": row.weight, "after": body.weight}, now)
        row.weight, row.updated_at = body.weight, now
        publish_event(session, "job.weight", job, {"weight": body.weight}, now)
    return {"job": job, "weight": body.weight}
