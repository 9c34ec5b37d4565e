"""The ladder of diagnosis: rule, memory, model, or an honest unknown. Each rung runs only where the one before abstained.

The deterministic verdict is complete before any of this begins and is never overruled. What a rung adds is a name for the
cause; what may be done about it stays what policy makes of evidence whose trust the rung cannot raise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from agents.failure_agent import Opinion
from agents.memory import Neighbor, Vote
from rules.diagnosis import Alternative, Diagnosis, Evidence, Source
from rules.signal import Role, Trust
from rules.taxonomy import NONE, UNNAMED, Remedy, Severity, Taxonomy

__all__ = ["Ladder", "LadderResult", "Recall", "Rung", "SecondOpinion"]

HARDWARE_REMEDIES = frozenset((Remedy.ISOLATE_NODE, Remedy.RESET_GPU))


class Recall(Protocol):
    """Memory's vote on the evidence of one failure."""

    def __call__(self, diagnosis: Diagnosis) -> Vote: ...


class SecondOpinion(Protocol):
    """The failure agent's opinion on one failure."""

    def __call__(self, diagnosis: Diagnosis) -> Opinion: ...


@dataclass(frozen=True, slots=True)
class Rung:
    """What one rung said, or why it abstained, what it took, and what memory compared it with."""

    source: Source
    reason: str | None
    why: str
    seconds: float = 0.0
    tokens: int = 0
    neighbors: tuple[Neighbor, ...] = ()


@dataclass(frozen=True, slots=True)
class LadderResult:
    """The diagnosis after the ladder, and every rung that was tried, in order."""

    diagnosis: Diagnosis
    rungs: tuple[Rung, ...]


@dataclass(frozen=True, slots=True)
class Ladder:
    """Rungs that are absent (None) say so instead of failing."""

    taxonomy: Taxonomy
    recall: Recall | None
    second_opinion: SecondOpinion | None
    clock: Callable[[], float]
    memory_off: str = "memory is not installed"
    model_off: str = "no model is configured"

    def climb(self, diagnosis: Diagnosis) -> LadderResult:
        """Raise a failure that lacks a cause rung by rung; anything else is returned as it is."""
        if not diagnosis.lacks_cause:
            why = diagnosis.summary if diagnosis.is_established else "nothing failed"
            return LadderResult(diagnosis, (Rung(Source.RULE, diagnosis.reason, why),))
        rungs = [Rung(Source.RULE, None, diagnosis.summary)]
        raised = self._by_memory(diagnosis, rungs) or self._by_model(diagnosis, rungs)
        if raised is None:
            rungs.append(Rung(Source.UNKNOWN, diagnosis.reason, "no rung knows it; collect what is named"))
        return LadderResult(raised or diagnosis, tuple(rungs))

    def _by_memory(self, diagnosis: Diagnosis, rungs: list[Rung]) -> Diagnosis | None:
        if self.recall is None:
            rungs.append(Rung(Source.MEMORY, None, self.memory_off))
            return None
        began = self.clock()
        vote = self.recall(diagnosis)
        rungs.append(Rung(Source.MEMORY, vote.reason, vote.why, self.clock() - began, neighbors=vote.neighbors))
        if vote.reason is None or vote.reason in UNNAMED | {NONE} or vote.reason not in self.taxonomy:
            return None
        others = tuple(Alternative(name, share) for name, share in (vote.shares or {}).items() if name != vote.reason)
        return self._named(diagnosis, vote.reason, Source.MEMORY, vote.confidence, vote.why, others)

    def _by_model(self, diagnosis: Diagnosis, rungs: list[Rung]) -> Diagnosis | None:
        if self.second_opinion is None:
            rungs.append(Rung(Source.LLM, None, self.model_off))
            return None
        opinion = self.second_opinion(diagnosis)
        rungs.append(Rung(Source.LLM, opinion.reason, opinion.why, opinion.seconds, opinion.usage.tokens))
        if opinion.reason is None:
            return None
        named = self._named(diagnosis, opinion.reason, Source.LLM, opinion.confidence, opinion.why, ())
        quoted = set(opinion.quotes)
        # Trust `job`, whoever wrote them: what a model points at may cause no more than a restart.
        evidence = tuple(
            replace(item, role=Role.ROOT, trust=Trust.JOB) if item.text in quoted else item for item in named.evidence
        )
        known = {item.text for item in evidence}
        evidence += tuple(
            Evidence(Role.ROOT, text, line=number)
            for number, text in zip(opinion.lines, opinion.quotes, strict=True)
            if text not in known
        )
        # A model's word changes no action: handling stays that of a failure whose cause is not established.
        return replace(
            named, severity=diagnosis.severity, remedy=diagnosis.remedy, retryable=diagnosis.retryable, evidence=evidence
        )

    def _named(
        self, diagnosis: Diagnosis, name: str, source: Source, confidence: float, why: str, others: tuple[Alternative, ...]
    ) -> Diagnosis:
        reason = self.taxonomy[name]
        raised = Diagnosis.of(
            reason,
            f"{reason.definition} ({source.value}: {why})",
            source=source,
            confidence=confidence,
            fault_domain=diagnosis.fault_domain,
            evidence=diagnosis.evidence,
            alternatives=others,
            collect=diagnosis.collect,
            inputs=diagnosis.inputs,
            why=(*diagnosis.why, why),
        )
        if raised.severity is Severity.SEV1 or raised.remedy in HARDWARE_REMEDIES:
            # Likeness to a past hardware fault is no proof of one: localise, then decide.
            return replace(raised, severity=Severity.SEV2, remedy=Remedy.LOCALISE)
        return raised
