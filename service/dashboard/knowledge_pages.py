"""The rules that this service reads logs with, and one rule whole."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import select

from rules.learnt import LEARNT_PREFIX
from rules.taxonomy import load_taxonomy
from service.access import Right, allow
from service.api.rules import known_rules, rules_about
from service.dashboard.rendering import page
from service.problems import Problem
from service.state import ServiceDependency
from service.store.candidates import CandidateRow

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[Depends(allow(Right.READ))])


@router.get("/rules")
def rules_page(service: ServiceDependency, contains: Annotated[str, Query(max_length=100)] = "") -> HTMLResponse:
    return page("rules.html", rules=rules_about(service, contains), total=len(known_rules(service)), contains=contains)


@router.get("/rules/{code}")
def rule_page(code: str, service: ServiceDependency) -> Response:
    rule = known_rules(service).get(code)
    if rule is None and code.startswith(LEARNT_PREFIX):
        newest = select(CandidateRow.id).where(CandidateRow.code == code).order_by(CandidateRow.version.desc()).limit(1)
        with service.store.reading() as session:
            number = session.scalar(newest)
        if number is not None:
            return RedirectResponse(f"/learning/{number}", 303)
    if rule is None:
        raise Problem(404, f"no rule has the code {code[:64]!r}")
    return page("rule.html", rule=rule, reason=load_taxonomy()[rule.reason] if rule.reason else None)
