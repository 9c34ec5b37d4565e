"""The directive: what a launcher is told about a failure (CONTRACT.md)."""

from __future__ import annotations

from typing import Any

from recovery.decision import Action, Decision, DirectiveKind, Mode, Resume
from recovery.states import Recovery, Stage
from service.store.database import timestamp

__all__ = ["RETRY_AFTER_SECONDS", "decided_directive", "is_settled", "resume_document", "waiting_directive"]

RETRY_AFTER_SECONDS = 1
# How long an answer is worth acting on where nothing else limits it.
VALID_SECONDS = 300.0


def is_settled(state: Recovery) -> bool:
    """Whether launchers can be told for good: nobody is still to be asked, nothing still to be planned."""
    if state.stage in (Stage.PLANNED, Stage.ACTED) or state.is_over:
        return True
    return state.decision is not None and state.decision.directive is DirectiveKind.NONE


def expiry_of(state: Recovery) -> str | None:
    return timestamp(state.trail[-1].at + VALID_SECONDS if state.deadline is None else state.deadline)


def resume_document(resume: Resume) -> dict[str, Any]:
    return {
        "step": resume.step,
        "checkpoint": resume.checkpoint,
        "skip_batches": [list(interval) for interval in resume.skip_batches],
    }


# What is left to say where the next failure came before anything was decided about this one.
OVERTAKEN = Decision(Action.NONE, DirectiveKind.NONE, Mode.AUTO, ("overtaken by what happened since",), "nothing")


def decided_directive(recovery: int, incident: int, state: Recovery) -> dict[str, Any]:
    """The answer that every report of this failure gets from now on."""
    decision = state.decision or OVERTAKEN
    kind, why = decision.directive, decision.sentence
    if state.superseded:
        kind, why = DirectiveKind.NONE, f"it was started again already, under generation {state.successor}; {why}"
    return {
        "directive": kind.value,
        "id": str(recovery),
        "generation": state.successor if state.successor is not None else state.generation,
        "incident": str(incident),
        "nodes": {"exclude": list(decision.exclude), "use": list(decision.use)},
        "resume": resume_document(decision.resume),
        "delay_seconds": decision.delay_seconds,
        "expires_at": expiry_of(state),
        "why": why,
        "mode": decision.mode.value,
        "would": decision.would,
    }


def waiting_directive(recovery: int, incident: int, state: Recovery) -> dict[str, Any]:
    """The answer while it is undecided: ask again with the same key."""
    decision = state.decision
    waiting = state.awaits_approval and decision is not None
    return {
        "directive": DirectiveKind.WAIT.value,
        "id": str(recovery),
        "generation": state.generation,
        "incident": str(incident),
        "nodes": {"exclude": [], "use": []},
        "resume": resume_document(Resume()),
        "delay_seconds": RETRY_AFTER_SECONDS,
        "expires_at": expiry_of(state),
        "why": "a person has to approve it" if waiting else "the cause is being looked for",
        "mode": (Mode.APPROVE if waiting else Mode.AUTO).value,
        "would": decision.would if decision is not None else "",
    }
