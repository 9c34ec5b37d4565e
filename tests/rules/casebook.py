"""A small language for ranking tests: rules and signals in a line each, so that a test reads like the log it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rules.diagnosis import Diagnosis
from rules.findings import Findings
from rules.pack import Rule, RuleRole
from rules.ranking import rank
from rules.signal import Line, Role, Signal

ROLE = {RuleRole.ROUTINE: Role.CONTEXT}


def rule(code: str, reason: str | None = None, role: str = "root", **fields: Any) -> Rule:
    """A rule that some signal of the test came from; its pattern plays no part."""
    return Rule(code=code, title=code, pack="test", role=RuleRole(role), reason=reason, any=("x",), **fields)


def sighting(found_by: Rule, number: int, **fields: Any) -> tuple[Rule, Signal]:
    """A signal of `found_by` on line `number`; other fields go to its line, `captures` and `count` to the signal."""
    captures, count, last = fields.pop("captures", {}), fields.pop("count", 1), fields.pop("last", None)
    line = Line(text=fields.pop("text", f"line {number}"), number=number, **fields)
    role = ROLE.get(found_by.role) or Role(found_by.role.value)
    end = replace(line, number=last) if last else None
    return found_by, Signal(found_by.code, found_by.reason or "", role, line, captures=captures, count=count, last=end)


def diagnose(*sightings: tuple[Rule, Signal]) -> Diagnosis:
    """What ranking makes of the sightings, in the order given."""
    rules = {found_by.code: found_by for found_by, _ in sightings}
    signals = tuple(signal for _, signal in sightings)
    return rank(Findings(signals=signals, lines=max((s.line.number for s in signals), default=0)), rules.values())


def root_lines(diagnosis: Diagnosis) -> list[int]:
    return [item.line for item in diagnosis.evidence if item.role is Role.ROOT and item.line is not None]
