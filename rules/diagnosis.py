"""A diagnosis: what broke, why, how sure, and the lines that prove it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from rules.signal import Role, Trust
from rules.taxonomy import NONE, UNKNOWN, UNNAMED, Category, Reason, Remedy, Severity

__all__ = ["Alternative", "Diagnosis", "Evidence", "FaultDomain", "Input", "Source", "diagnosis_document"]


class Source(StrEnum):
    """The rung of the ladder that established a diagnosis."""

    RULE = "rule"
    MEMORY = "memory"
    LLM = "llm"
    OPERATOR = "operator"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One quoted line or measurement, exactly as stored."""

    role: Role
    text: str
    path: str = "-"
    line: int | None = None
    rule: str | None = None
    trust: Trust = Trust.JOB
    node: str | None = None
    rank: int | None = None
    time: float | None = None


@dataclass(frozen=True, slots=True)
class FaultDomain:
    """Where the fault sits, as far as the evidence says; text as it stood in the evidence."""

    node: str | None = None
    gpu: str | None = None
    rank: str | None = None
    link: str | None = None
    other: str | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    reason: str
    confidence: float
    ruled_out_by: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """One source that was read: what it turned out to be, its size, how many lines were kept, and what was amiss with it."""

    path: str
    kind: str
    lines: int
    bytes: int
    kept: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on one failure. `retryable` says whether the same work may succeed unchanged."""

    reason: str
    family: str
    category: Category
    component: str
    severity: Severity
    retryable: bool
    remedy: Remedy
    summary: str
    source: Source = Source.RULE
    confidence: float = 0.0
    rule: str | None = None
    fault_domain: FaultDomain = field(default_factory=FaultDomain)
    evidence: tuple[Evidence, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    collect: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()
    why: tuple[str, ...] = ()

    @classmethod
    def of(cls, reason: Reason, summary: str, **fields: Any) -> Diagnosis:
        """A diagnosis with the handling that the taxonomy gives for `reason`."""
        return cls(
            reason=reason.name,
            family=reason.family,
            category=reason.category,
            component=reason.component,
            severity=reason.severity,
            retryable=reason.retryable,
            remedy=reason.remedy,
            summary=summary,
            **fields,
        )

    @property
    def is_failure(self) -> bool:
        return self.reason != NONE

    @property
    def is_established(self) -> bool:
        return self.reason not in (NONE, UNKNOWN)

    @property
    def lacks_cause(self) -> bool:
        """Whether this is a failure of which no line says why: unknown, or an exit that nothing explains."""
        return self.reason in UNNAMED

    def with_inputs(self, inputs: tuple[Input, ...]) -> Diagnosis:
        return replace(self, inputs=inputs)


def diagnosis_document(diagnosis: Diagnosis) -> dict[str, Any]:
    """The JSON document of `pitstop diagnose --json` (CONTRACT.md), version 1."""
    domain = diagnosis.fault_domain
    return {
        "version": 1,
        "reason": diagnosis.reason,
        "family": diagnosis.family,
        "category": diagnosis.category.value,
        "component": diagnosis.component,
        "severity": diagnosis.severity.value,
        "retryable": diagnosis.retryable,
        "remedy": diagnosis.remedy.value,
        "fault_domain": {"node": domain.node, "gpu": domain.gpu, "rank": domain.rank, "link": domain.link, "other": domain.other},
        "source": diagnosis.source.value,
        "confidence": round(diagnosis.confidence, 3),
        "rule": diagnosis.rule,
        "summary": diagnosis.summary,
        "evidence": [
            {
                "role": item.role.value,
                "path": item.path,
                "line": item.line,
                "text": item.text,
                "rule": item.rule,
                "trust": item.trust.value,
                "node": item.node,
                "rank": item.rank,
                "time": item.time,
            }
            for item in diagnosis.evidence
        ],
        "alternatives": [{"reason": other.reason, "confidence": round(other.confidence, 3)} for other in diagnosis.alternatives],
        "collect": list(diagnosis.collect),
        "inputs": [
            {
                "path": source.path,
                "kind": source.kind,
                "lines": source.lines,
                "bytes": source.bytes,
                "kept": source.kept,
                "note": source.note,
            }
            for source in diagnosis.inputs
        ],
        "why": list(diagnosis.why),
    }
