"""From what each member of a world says to one result of the probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recovery.localization.probes import Outcome, Probe, ProbeResult

__all__ = ["Answer", "combine"]

# What is worse prevails, but for a probe that was killed or an agent that said nothing: then the others' failures prove nothing.
ORDER = (Outcome.PASSED, Outcome.TIMED_OUT, Outcome.ERROR, Outcome.WRONG_DATA, Outcome.SILENT, Outcome.VOID)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one member saw: `seconds` of its allgather where that passed, else until it was given up."""

    outcome: Outcome
    seconds: float
    error: str = ""


def combine(probe: Probe, answers: Mapping[str, Answer]) -> ProbeResult:
    """The result of `probe`; a member without an answer is silent."""
    found = {node: answers.get(node, Answer(Outcome.SILENT, 0.0, "no answer from its agent")) for node in probe.members}
    worst = max((answer.outcome for answer in found.values()), key=ORDER.index)
    seconds = max(answer.seconds for answer in found.values())
    errors = "; ".join(f"{node}: {answer.error or answer.outcome.value}" for node, answer in found.items() if answer.error)
    return ProbeResult(probe, worst, seconds, errors)
