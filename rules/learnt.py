"""Learnt rules speak only where the shipped ones name no cause, and may cause no more than a job's own lines may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rules.diagnosis import Alternative, Diagnosis, Evidence
from rules.pack import Rule
from rules.signal import Line, Role, Trust
from rules.taxonomy import Remedy, Severity, load_taxonomy

__all__ = ["LEARNT_PREFIX", "name_cause"]

# Begins the code of every learnt rule, and of no other.
LEARNT_PREFIX = "PS-LEARNT-"

CONFIDENCE = 0.75
QUOTED = 6
HARDWARE_REMEDIES = frozenset((Remedy.ISOLATE_NODE, Remedy.RESET_GPU))


def name_cause(diagnosis: Diagnosis, found: Sequence[tuple[Rule, Line]]) -> Diagnosis:
    """`diagnosis`, or where it lacks a cause the one that the learnt rules found in these lines, in order of reading.

    Rules that name different causes name none. A hardware fault becomes SEV2 and `localise`: what was learnt isolates nothing.
    """
    if not diagnosis.lacks_cause or not found:
        return diagnosis
    reasons = dict.fromkeys(rule.reason for rule, _ in found)
    if len(reasons) > 1:
        told = ", ".join(f"{rule.code} says {rule.reason}" for rule in dict.fromkeys(rule for rule, _ in found))
        others = tuple(Alternative(str(name), round(1 / len(reasons) / 2, 3)) for name in reasons)
        return replace(
            diagnosis, alternatives=(*diagnosis.alternatives, *others), why=(*diagnosis.why, f"learnt rules disagree: {told}")
        )
    rule, line = found[0]
    reason = load_taxonomy()[str(rule.reason)]
    if reason.severity is Severity.SEV1 or reason.remedy in HARDWARE_REMEDIES:
        reason = replace(reason, severity=Severity.SEV2, remedy=Remedy.LOCALISE)
    quoted = {(item.path, item.number): (of, item) for of, item in found[:QUOTED]}
    # Whoever wrote the line: nobody vouches for what a learnt rule makes of it.
    roots = tuple(
        Evidence(Role.ROOT, item.text, item.path, item.number, of.code, Trust.JOB, item.node, item.rank, item.time)
        for of, item in quoted.values()
    )
    rest = tuple(
        replace(item, role=Role.CASCADE if item.role is Role.ROOT else item.role)
        for item in diagnosis.evidence
        if (item.path, item.line) not in quoted
    )
    return Diagnosis.of(
        reason,
        f"{rule.title} (learnt rule {rule.code}, {line.path}:{line.number}).",
        confidence=CONFIDENCE,
        rule=rule.code,
        fault_domain=diagnosis.fault_domain,
        evidence=(*roots, *rest),
        collect=diagnosis.collect,
        inputs=diagnosis.inputs,
        why=(*diagnosis.why, f"{rule.code} was learnt and is in use; the shipped rules name no cause"),
    )
