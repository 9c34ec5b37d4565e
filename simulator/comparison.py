"""Policies side by side on the same faults: paired intervals over seeds, bands over open parameters, sensitivities."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from simulator.engine import Setting, Story, simulate
from simulator.parameters import Parameters
from simulator.policies import POLICIES

__all__ = ["Band", "Interval", "Sensitivity", "band_of", "paired", "ratios", "sensitivities", "stories"]

RESAMPLES = 2000
# Makes the setting of one seed under one choice of parameters.
Make = Callable[[Parameters, int], Setting]
Progress = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, and where 95 of 100 resamplings of the seeds put it."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Band:
    """Over draws of the open parameters: the middle, and between which values nine of ten lie; least and most of all."""

    median: float
    low: float
    high: float
    least: float
    most: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The ratio with one parameter at either end of its range, all others at their values."""

    parameter: str
    at_low: float
    at_high: float

    @property
    def swing(self) -> float:
        return abs(self.at_high - self.at_low)


def stories(make: Make, names: Sequence[str], parameters: Parameters, seed: int) -> dict[str, Story]:
    """Each policy on the same faults."""
    setting = make(parameters, seed)
    return {name: simulate(setting, POLICIES[name](parameters, setting.nodes * 8)) for name in names}


def ratios(told: Mapping[str, Story], first: str) -> dict[str, float]:
    """Accumulated WAF of `first` over that of each of the others."""
    return {
        name: told[first].worth / story.worth if story.worth > 0 else float("inf")
        for name, story in told.items()
        if name != first
    }


def paired(values: Sequence[float], seed: int = 0) -> Interval:
    """The bootstrap of values that are each a comparison on the same faults."""
    chance = random.Random(seed)
    means = sorted(fmean(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return Interval(fmean(values), means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1])


def band_of(values: Sequence[float]) -> Band:
    ordered = sorted(values)
    last = len(ordered) - 1
    return Band(ordered[last // 2], ordered[round(0.05 * last)], ordered[round(0.95 * last)], ordered[0], ordered[-1])


def sensitivities(
    make: Make, first: str, other: str, parameters: Parameters, seeds: Sequence[int], progress: Progress = lambda: None
) -> list[Sensitivity]:
    """One open parameter at a time, what moves the ratio most first. Those that move nothing are left out."""
    found = []
    for item in parameters.open():
        ends = []
        for value in (item.low, item.high):
            changed = parameters.changed({item.name: value})
            ends.append(fmean(ratios(stories(make, (first, other), changed, seed), first)[other] for seed in seeds))
        progress()
        if ends[0] != ends[1]:
            found.append(Sensitivity(item.name, ends[0], ends[1]))
    return sorted(found, key=lambda item: -item.swing)
