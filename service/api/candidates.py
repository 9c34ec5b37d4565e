"""Learnt rules over HTTP: what was proposed, what the gate said of it, and the operators' say in what is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rules.pack import RuleRole
from rules.redaction import redact_text
from rules.taxonomy import NONE, UNNAMED, load_taxonomy
from service.access import Principal, PrincipalDependency, Right, allow
from service.api.documents import offset_of
from service.candidates import (
    CandidateState,
    Origin,
    StateError,
    approve,
    candidate_document,
    propose,
    roll_back,
    step_back,
)
from service.problems import Problem, conflict
from service.state import Service, ServiceDependency
from service.store.candidates import CandidateRow

__all__ = ["CandidateId", "candidate_or_404", "router"]

router = APIRouter(prefix="/api/v1/candidates", tags=["rules"])

OPERATE = [Depends(allow(Right.OPERATE))]
OTHER_STAGE = conflict("The rule is not at a stage that this leads on from.")
CandidateId = Annotated[int, Path(ge=1, le=2**62)]
Text = Annotated[str, Field(max_length=4096)]


class Comment(BaseModel):
    model_config = ConfigDict(extra="forbid")

    comment: Text = ""


class Written(BaseModel):
    """A rule as an operator writes it. `cited`: lines that it must find. `replaces`: of which candidate it is a new version."""

    model_config = ConfigDict(extra="forbid")

    pattern: Annotated[str, Field(min_length=1, max_length=2000)]
    reason: Annotated[str, Field(max_length=64)] | None = None
    title: Annotated[str, Field(min_length=1, max_length=400)]
    cited: Annotated[list[Annotated[str, Field(max_length=16_384)]] | str, Field(max_length=65_536)]
    role: RuleRole = RuleRole.ROOT
    replaces: Annotated[int, Field(ge=1, le=2**62)] | None = None


def candidate_or_404(session: Session, number: int) -> CandidateRow:
    row = session.get(CandidateRow, number)
    if row is None:
        raise Problem(404, f"there is no candidate {number}")
    return row


@router.get("", operation_id="listCandidates", dependencies=[Depends(allow(Right.READ))])
def list_candidates(
    service: ServiceDependency,
    state: CandidateState | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Learnt rules and those that want to be, the newest first."""
    offset = offset_of(cursor)
    chosen = select(CandidateRow)
    if state is not None:
        chosen = chosen.where(CandidateRow.state == state.value)
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(chosen.subquery())) or 0
        rows = session.scalars(chosen.order_by(CandidateRow.id.desc()).offset(offset).limit(limit)).all()
        items = [candidate_document(session, row) for row in rows]
    return {"items": items, "total": total, "next_cursor": str(offset + limit) if offset + limit < total else None}


@router.get("/{number}", operation_id="getCandidate", dependencies=[Depends(allow(Right.READ))])
def get_candidate(number: CandidateId, service: ServiceDependency) -> dict[str, Any]:
    """One of them, with what the gate said, line by line."""
    with service.store.reading() as session:
        return candidate_document(session, candidate_or_404(session, number))


@router.post(
    "", status_code=201, operation_id="writeCandidate", dependencies=OPERATE, responses=conflict("This rule was proposed before.")
)
def write_candidate(body: Written, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Propose a rule; the gate judges it within seconds."""
    cited = [line for line in (body.cited.splitlines() if isinstance(body.cited, str) else body.cited) if line.strip()]
    if body.role not in (RuleRole.ROOT, RuleRole.ROUTINE):
        raise Problem(422, "role: root (it names a cause) or routine (it drops lines)")
    if body.role is RuleRole.ROOT and (
        body.reason is None or body.reason not in load_taxonomy() or body.reason in UNNAMED | {NONE}
    ):
        raise Problem(422, f"reason {body.reason!r} names no cause of the taxonomy")
    if body.role is RuleRole.ROUTINE and body.reason is not None:
        raise Problem(422, "a routine rule has no reason")
    with service.store.writing() as session:
        replaced = None if body.replaces is None else candidate_or_404(session, body.replaces)
        row = propose(
            session,
            pattern=body.pattern,
            reason=body.reason,
            title=redact_text(body.title),
            cited=[redact_text(line) for line in cited],
            origin=Origin.OPERATOR,
            provenance={"written_by": principal.name},
            by=principal.name,
            now=service.clock(),
            role=body.role,
            replaces=replaced,
        )
        if row is None:
            raise Problem(409, "this rule was proposed before")
        return candidate_document(session, row)


@router.post("/{number}/approve", operation_id="approveCandidate", dependencies=OPERATE, responses=OTHER_STAGE)
def approve_candidate(
    number: CandidateId, service: ServiceDependency, principal: PrincipalDependency, body: Comment | None = None
) -> dict[str, Any]:
    """Put a rule into use that the gate let through. It speaks about every job, so it takes an operator's token."""
    if principal.capped:
        raise Problem(403, "a rule in use speaks about every job: putting one into use takes an operator's token")
    return change(service, principal, number, body, approve)


@router.post("/{number}/shadow", operation_id="stepCandidateBack", dependencies=OPERATE, responses=OTHER_STAGE)
def shadow_candidate(
    number: CandidateId, service: ServiceDependency, principal: PrincipalDependency, body: Comment | None = None
) -> dict[str, Any]:
    """Back to shadow: counted, without effect."""
    return change(service, principal, number, body, step_back)


@router.post("/{number}/rollback", operation_id="rollCandidateBack", dependencies=OPERATE, responses=OTHER_STAGE)
def rollback_candidate(
    number: CandidateId, service: ServiceDependency, principal: PrincipalDependency, body: Comment | None = None
) -> dict[str, Any]:
    """Take a rule out; the version that was in use before it is used again."""
    return change(service, principal, number, body, roll_back)


def change(
    service: Service,
    principal: Principal,
    number: int,
    body: Comment | None,
    act: Callable[[Session, CandidateRow, str, str, float], object],
) -> dict[str, Any]:
    comment = redact_text(body.comment) if body else ""
    with service.store.writing() as session:
        row = candidate_or_404(session, number)
        try:
            act(session, row, principal.name, comment or f"by {principal.name}", service.clock())
        except StateError as error:
            raise Problem(409, str(error)) from None
        return candidate_document(session, row)
