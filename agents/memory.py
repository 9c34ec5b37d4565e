"""Memory: has this failure been seen before? A vote of the most similar past failures, which abstains when it is not sure.

Its job is recurrence (RCACopilot: 93.8 % of incidents recur within 20 days), so age counts; what operators confirmed counts more,
and what they called wrong does not count at all. A verdict of memory alone never isolates anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = ["Calibration", "Entry", "Feedback", "Neighbor", "Origin", "Vote", "vote"]


class Feedback(StrEnum):
    NONE = "none"
    CONFIRMED = "confirmed"
    WRONG = "wrong"


class Origin(StrEnum):
    """Where an entry comes from: a settled incident, or an example that a rule carries."""

    INCIDENT = "incident"
    RULE_EXAMPLE = "rule_example"


@dataclass(frozen=True, slots=True)
class Entry:
    """One remembered failure. `key` is the incident's id or the rule's code; `seen_at` is seconds since the epoch."""

    key: str
    reason: str
    text: str
    origin: Origin
    seen_at: float = 0.0
    feedback: Feedback = Feedback.NONE


@dataclass(frozen=True, slots=True)
class Neighbor:
    """A remembered failure beside the one that is asked about: cosine similarity, and the share of words in common."""

    entry: Entry
    similarity: float
    weight: float = 0.0
    shared: float = 1.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """When memory may speak. Similarities are cosines of MiniLM; `benchmarks memory` shows what that comes to.

    `least_shared`: of the words, rare ones weighing more; a case told in other words is no recurrence, however alike it reads.
    """

    floor: float = 0.60
    least_similarity: float = 0.86
    least_share: float = 0.70
    least_shared: float = 0.60
    half_life_days: float = 180.0
    neighbors: int = 8
    confirmed_factor: float = 1.5
    example_factor: float = 0.8


@dataclass(frozen=True, slots=True)
class Vote:
    """The verdict (`reason` None: abstained), how sure, why, and the neighbours that it rests on, best first."""

    reason: str | None
    confidence: float
    why: str
    neighbors: tuple[Neighbor, ...] = ()
    shares: Mapping[str, float] | None = None


def weight_of(entry: Entry, similarity: float, now: float, calibration: Calibration) -> float:
    if entry.feedback is Feedback.WRONG or similarity <= calibration.floor:
        return 0.0
    closeness = ((similarity - calibration.floor) / (1.0 - calibration.floor)) ** 8
    if entry.origin is Origin.RULE_EXAMPLE:
        return closeness * calibration.example_factor
    age_days = max(0.0, now - entry.seen_at) / 86_400
    recency = 0.5 ** (age_days / calibration.half_life_days)
    return float(closeness * recency * (calibration.confirmed_factor if entry.feedback is Feedback.CONFIRMED else 1.0))


def vote(
    candidates: Sequence[tuple[Entry, float]],
    now: float,
    calibration: Calibration | None = None,
    shared: Callable[[Entry], float] = lambda _entry: 1.0,
) -> Vote:
    """Weigh (entry, similarity) candidates into one verdict. `now` is seconds since the epoch.

    `shared`: the share of words that an entry has in common with what is asked about (Wording.shared).
    """
    calibration = calibration or Calibration()
    weighed = [
        Neighbor(entry, similarity, weight_of(entry, similarity, now, calibration), shared(entry))
        for entry, similarity in candidates
    ]
    weighed = sorted((item for item in weighed if item.weight > 0), key=lambda item: (-item.similarity, item.entry.key))
    near = [item for item in weighed if item.shared >= calibration.least_shared][: calibration.neighbors]
    if not near and weighed and weighed[0].similarity >= calibration.least_similarity:
        why = f"the closest ({weighed[0].entry.key}) is told in other words: {weighed[0].shared:.0%} in common"
        return Vote(None, 0.0, why, tuple(replace(item, weight=0.0) for item in weighed[: calibration.neighbors]))
    if not near:
        return Vote(None, 0.0, "nothing alike is remembered", tuple(near))
    by_reason: dict[str, float] = defaultdict(float)
    closest: dict[str, float] = defaultdict(float)
    for item in near:
        by_reason[item.entry.reason] += item.weight
        closest[item.entry.reason] = max(closest[item.entry.reason], item.similarity)
    total = sum(by_reason.values())
    shares = {reason: weight / total for reason, weight in by_reason.items()}
    best = max(shares, key=lambda reason: (shares[reason], reason))
    if closest[best] < calibration.least_similarity:
        why = f"the closest ({near[0].entry.key}) is only {closest[best]:.2f} alike, under {calibration.least_similarity:.2f}"
        return Vote(None, 0.0, why, tuple(near), shares)
    if shares[best] < calibration.least_share:
        second = max((reason for reason in shares if reason != best), key=lambda reason: shares[reason])
        why = f"past cases disagree: {best} {shares[best]:.0%}, {second} {shares[second]:.0%}"
        return Vote(None, 0.0, why, tuple(near), shares)
    confidence = min(0.95, closest[best] * shares[best])
    supporters = [item.entry.key for item in near if item.entry.reason == best]
    why = (
        f"{len(supporters)} of {len(near)} similar cases were {best}; the closest ({supporters[0]}) is {closest[best]:.2f} alike"
    )
    return Vote(best, confidence, why, tuple(near), shares)
