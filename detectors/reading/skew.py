"""Clock skew between ranks, from steps that all of them complete together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

__all__ = ["StepPoint", "clock_offsets"]

# Steps that a rank must share with others before its clock is judged.
MIN_SHARED_STEPS = 3
MIN_RANKS = 3
# Ranks print a step within a moment of one another, and many stamps count whole seconds: less than this is no skew.
MIN_OFFSET_SECONDS = 2.0
# A clock is off by the same amount at every step; what varies by more than this share of its offset is a slow rank.
MAX_SPREAD_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class StepPoint:
    """When a rank says that it completed a step, by its own clock (seconds since the epoch)."""

    rank: int
    step: int
    time: float


def clock_offsets(points: Iterable[StepPoint]) -> Mapping[int, float]:
    """How far each rank's clock runs ahead (seconds, negative: behind), for ranks where that is certain.

    Synchronous training completes a step everywhere at once, so that a rank's distance from the median of all ranks, equal at
    several steps, is its clock's.
    """
    by_step: dict[int, dict[int, float]] = defaultdict(dict)
    for point in points:
        by_step[point.step].setdefault(point.rank, point.time)
    distances: dict[int, list[float]] = defaultdict(list)
    for times in by_step.values():
        if len(times) >= MIN_RANKS:
            middle = median(times.values())
            for rank, time in times.items():
                distances[rank].append(time - middle)
    offsets = {}
    for rank, found in distances.items():
        offset = median(found)
        spread = max(found) - min(found)
        steady = spread <= max(MIN_OFFSET_SECONDS, MAX_SPREAD_SHARE * abs(offset))
        if len(found) >= MIN_SHARED_STEPS and abs(offset) >= MIN_OFFSET_SECONDS and steady:
            offsets[rank] = offset
    return offsets
