"""The rules that this service reads logs with; those that it learnt are under /api/v1/candidates."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from rules.pack import PACK_FOLDER, Rule, load_packs
from service.access import Right, allow
from service.api.documents import listing, offset_of
from service.problems import Problem
from service.state import Service, ServiceDependency

__all__ = ["known_rules", "router", "rules_about"]

router = APIRouter(prefix="/api/v1/rules", tags=["rules"], dependencies=[Depends(allow(Right.READ))])


@cache
def rules_of(folder: Path) -> dict[str, Rule]:
    return {rule.code: rule for rule in load_packs(folder)}


def known_rules(service: Service) -> dict[str, Rule]:
    """By code, in the order of their packs."""
    return rules_of(service.settings.rules_dir or PACK_FOLDER)


def rules_about(service: Service, words: str) -> list[Rule]:
    """The rules whose code, title, reason, role or pack hold every one of `words`, whatever their case."""
    wanted = words.lower().split()
    return [
        rule
        for rule in known_rules(service).values()
        if all(word in f"{rule.code} {rule.title} {rule.reason} {rule.role} {rule.pack}".lower() for word in wanted)
    ]


def rule_document(rule: Rule) -> dict[str, Any]:
    return {"code": rule.code, "role": rule.role, "reason": rule.reason, "title": rule.title, "pack": rule.pack}


@router.get("", operation_id="listRules")
def list_rules(
    service: ServiceDependency,
    contains: Annotated[str, Query(max_length=100, description="words of its code, title, reason, role or pack")] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Rules, in the order of their packs."""
    offset, found = offset_of(cursor), rules_about(service, contains)
    return listing(found[offset : offset + limit], rule_document, len(found), offset, limit)


@router.get("/{code}", operation_id="getRule")
def get_rule(code: str, service: ServiceDependency) -> dict[str, Any]:
    """Everything that one rule says."""
    rule = known_rules(service).get(code)
    if rule is None:
        raise Problem(404, f"no rule has the code {code[:64]!r}")
    return {**rule_document(rule), **{name: value for name, value in asdict(rule).items() if value not in (None, (), "")}}
