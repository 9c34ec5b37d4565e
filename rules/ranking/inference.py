"""Inferences: causes that no single line states, concluded from several observations."""

from __future__ import annotations

from dataclasses import dataclass, field

from rules.diagnosis import FaultDomain
from rules.ranking.observation import Observation

__all__ = ["Inference"]


@dataclass(frozen=True, slots=True)
class Inference:
    """A concluded cause. `roots` are the lines that prove it, `explains` reasons and rule codes that become its consequences.

    `established` is False for reasons that only name a symptom (the taxonomy's unattributed ones): any root outranks them.
    """

    reason: str
    weight: int
    roots: tuple[Observation, ...]
    why: str
    domain: FaultDomain = field(default_factory=FaultDomain)
    explains: frozenset[str] = frozenset()
    established: bool = True
