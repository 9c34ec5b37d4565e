"""How well diagnoses fit a labelled corpus: accuracies with intervals, harmful acts, and how much they hang on the choice of
cases.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from rules.taxonomy import NONE, UNKNOWN, Severity

__all__ = ["Judged", "Measure", "measure", "random_halves", "score", "wilson"]


@dataclass(frozen=True, slots=True)
class Judged:
    """One case with its label and what was predicted. Line indexes count from 0 within the case."""

    id: str
    source: str
    hard: bool
    truth: Mapping[str, str]
    culprits: frozenset[int]
    reason: str
    family: str
    category: str
    severity: str
    root_lines: tuple[int, ...]

    @property
    def is_failure(self) -> bool:
        return self.truth["reason"] != NONE


@dataclass(frozen=True, slots=True)
class Measure:
    """A share of cases: `count` of `of`, with the cases that count."""

    count: int
    of: int
    ids: tuple[str, ...] = ()

    @property
    def rate(self) -> float | None:
        return self.count / self.of if self.of else None

    def document(self) -> dict[str, Any]:
        rate, interval = self.rate, wilson(self.count, self.of)
        return {
            "rate": None if rate is None else round(rate, 4),
            "count": self.count,
            "of": self.of,
            "interval_95": interval and [round(bound, 3) for bound in interval],
        }


def wilson(count: int, of: int) -> tuple[float, float] | None:
    """Wilson's 95 % interval of a rate; None without cases."""
    if not of:
        return None
    z, rate = 1.96, count / of
    middle, half = rate + z * z / (2 * of), z * sqrt((rate * (1 - rate) + z * z / (4 * of)) / of)
    return max(0.0, (middle - half) / (1 + z * z / of)), min(1.0, (middle + half) / (1 + z * z / of))


def measure(cases: Sequence[Judged], counts: Callable[[Judged], bool]) -> Measure:
    found = tuple(case.id for case in cases if counts(case))
    return Measure(len(found), len(cases), found)


def score(cases: Sequence[Judged]) -> dict[str, Measure]:
    """The measures of the corpus: accuracies over the failures, acts that harm, failures overlooked, false alarms.

    Harmful isolation: SEV1 predicted where the truth is not. False stop: NONE predicted where a restart or an isolation
    would have helped. Root line: any of the lines named is one that the label names.
    """
    failures = [case for case in cases if case.is_failure]
    normal = [case for case in cases if not case.is_failure]
    located = [case for case in failures if case.culprits]
    worth = [case for case in failures if case.truth["severity"] != Severity.NONE]
    futile = [case for case in failures if case.truth["severity"] == Severity.NONE]
    healthy = [case for case in cases if case.truth["severity"] != Severity.SEV1]
    return {
        "reason": measure(failures, lambda case: case.reason == case.truth["reason"]),
        "reason_hard": measure([case for case in failures if case.hard], lambda case: case.reason == case.truth["reason"]),
        "family": measure(failures, lambda case: case.family == case.truth["family"]),
        "category": measure(failures, lambda case: case.category == case.truth["category"]),
        "severity": measure(failures, lambda case: case.severity == case.truth["severity"]),
        "root_line": measure(located, lambda case: not case.culprits.isdisjoint(case.root_lines)),
        "harmful_isolations": measure(healthy, lambda case: case.severity == Severity.SEV1),
        "false_stops": measure(worth, lambda case: case.severity == Severity.NONE and case.reason != NONE),
        "stopped_where_right": measure(
            futile, lambda case: case.severity == Severity.NONE and case.reason not in (NONE, UNKNOWN)
        ),
        "overlooked": measure(failures, lambda case: case.reason == NONE),
        "false_alarms": measure(normal, lambda case: case.reason != NONE),
    }


def root_precision(cases: Sequence[Judged]) -> float | None:
    """The mean share of the named root lines that are right, over the failures for which any were named."""
    shares = [
        len(case.culprits.intersection(case.root_lines)) / len(case.root_lines)
        for case in cases
        if case.is_failure and case.culprits and case.root_lines
    ]
    return sum(shares) / len(shares) if shares else None


def random_halves(cases: Sequence[Judged], repeats: int = 200, seed: int = 7) -> dict[str, tuple[float, float, float]]:
    """Accuracies over random halves of the sources: the lowest 2.5 %, the median, the highest 2.5 %.

    Cases of one source stay together: they share their software and their wording. A wide range means that a figure hangs on
    a few sources.
    """
    sources = sorted({case.source.split("#")[0] for case in cases})
    names = ("reason", "family", "category", "severity")
    rates: dict[str, list[float]] = {name: [] for name in names}
    draw = random.Random(seed)
    for _ in range(repeats):
        half = set(draw.sample(sources, (len(sources) + 1) // 2))
        measures = score([case for case in cases if case.source.split("#")[0] in half])
        for name in names:
            rate = measures[name].rate
            if rate is not None:
                rates[name].append(rate)
    return {name: quantiles(sorted(values)) for name, values in rates.items() if values}


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    last = len(values) - 1
    return values[round(0.025 * last)], values[round(0.5 * last)], values[round(0.975 * last)]
