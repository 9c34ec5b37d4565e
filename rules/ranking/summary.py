"""What a diagnosis says to a person: one sentence, the handling that applies, and what to gather next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import re2

from rules.diagnosis import FaultDomain
from rules.findings import Findings
from rules.ranking.candidates import Candidate
from rules.ranking.observation import Observation, position
from rules.taxonomy import Reason, Remedy, Severity

__all__ = ["collect_for", "nothing_wrong", "severity_of", "summarise", "unknown_failure"]

# The remedy that goes with a severity where a rule's condition overrides the reason's own.
OVERRIDE_REMEDY = {
    Severity.SEV1: Remedy.ISOLATE_NODE,
    Severity.SEV2: Remedy.RESTART_PROCESS,
    Severity.SEV3: Remedy.RETRY_IN_PLACE,
    Severity.NONE: Remedy.FIX_ENVIRONMENT,
}
COLLECT = (
    "the complete output of every rank, from its start",
    "kernel log of each node (dmesg -T or journalctl -k)",
    "scheduler record of the job (sacct -j JOB or kubectl describe)",
    "flight recorder dumps (TORCH_NCCL_DUMP_ON_TIMEOUT=1) where a collective timed out",
)


def severity_of(reason: Reason, chosen: Candidate) -> Reason:
    """The reason with the severity that applies here: a rule's override counts where its condition is found in the line."""
    for item in chosen.items:
        for override in item.rule.severity:
            if override.to is not reason.severity and re2.search(override.when, item.line.text):
                retryable = override.to in (Severity.SEV2, Severity.SEV3)
                return replace(reason, severity=override.to, remedy=OVERRIDE_REMEDY[override.to], retryable=retryable)
    return reason


def summarise(reason: Reason, chosen: Candidate, domain: FaultDomain) -> str:
    """One sentence: what happened, where, and the line that says so."""
    rule = chosen.leading.rule
    what = chosen.inference.why if chosen.inference else rule.title if rule.reason == reason.name else ""
    what = what or reason.definition.rstrip(".")
    places = (("node", domain.node), ("GPU", domain.gpu), ("rank", domain.rank), ("link", domain.link), ("", domain.other))
    where = ", ".join(f"{name} {value}".strip() for name, value in places if value)
    return f"{what[:1].upper()}{what[1:]}{f' on {where}' if where else ''} ({position(chosen.leading.line)})."


def collect_for(chosen: Candidate) -> tuple[str, ...]:
    """What would settle the cause: what the rules ask for, and for a symptom what any cause would leave behind."""
    wanted = [text for item in chosen.items for text in item.rule.collect]
    if not chosen.established:
        wanted += COLLECT
    return tuple(dict.fromkeys(wanted))


def unknown_failure(chosen: Candidate) -> str:
    return f"Something failed ({position(chosen.leading.line)}), and no line says why."


def nothing_wrong(findings: Findings, set_aside: Sequence[tuple[Observation, str]]) -> str:
    if not findings.lines:
        return "Nothing to read: no line in the input."
    if set_aside:
        return f"No failure in {findings.lines} lines; {len(set_aside)} warnings healed or are routine."
    return f"No failure in {findings.lines} lines."
