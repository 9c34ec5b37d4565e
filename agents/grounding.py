"""Grounding: a verdict counts only if every line that it quotes stands in the store, letter for letter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Citation", "Grounding", "ground"]


@dataclass(frozen=True, slots=True)
class Citation:
    """A line that a model quotes: the number that the prompt gave it, and its text as the model repeats it."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Grounding:
    """Whether all citations hold; `why` names the first that does not."""

    holds: bool
    why: str
    numbers: tuple[int, ...] = ()


def ground(citations: Sequence[Citation], shown: Mapping[int, str], stored: Mapping[int, str]) -> Grounding:
    """Check citations against what was shown to the model (placeholders and all) and against the store.

    `shown` and `stored` map the prompt's line numbers to texts. Raises nothing: a false citation is an answer, not an error.
    """
    if not citations:
        return Grounding(False, "it quotes no line")
    for citation in citations:
        if citation.number not in shown or citation.number not in stored:
            return Grounding(False, f"it quotes line {citation.number}, which was not shown")
        if citation.text.strip() != shown[citation.number].strip():
            return Grounding(False, f"its quotation of line {citation.number} is not what stands there")
    return Grounding(
        True, f"all {len(citations)} quoted lines stand in the store", tuple(citation.number for citation in citations)
    )
