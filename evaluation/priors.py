"""Run times learnt from earlier runs: seconds per sample of each dataset, for its generation and its verification."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Prior", "expected_times", "learn", "read_priors", "write_priors"]

# How much a new measurement weighs against what was known.
NEW_WEIGHT = 0.5
GUESS = 1.0


@dataclass(frozen=True, slots=True)
class Prior:
    """Seconds per sample, and how many runs they rest on."""

    gpu: float
    cpu: float
    runs: int = 1


def learn(priors: Mapping[str, Prior], dataset: str, gpu: float, cpu: float) -> dict[str, Prior]:
    """`priors` with a measurement more, in seconds per sample; an implausible one (not finite, negative) changes nothing."""
    known = dict(priors)
    if not all(math.isfinite(value) and value >= 0 for value in (gpu, cpu)):
        return known
    before = known.get(dataset)
    if before is None:
        known[dataset] = Prior(gpu, cpu)
    else:
        known[dataset] = Prior(
            before.gpu + NEW_WEIGHT * (gpu - before.gpu), before.cpu + NEW_WEIGHT * (cpu - before.cpu), before.runs + 1
        )
    return known


def expected_times(priors: Mapping[str, Prior], dataset: str, samples: int) -> tuple[float, float, bool]:
    """(gpu seconds, cpu seconds, known): measured, else as the median of the datasets that were, else a guess."""
    prior = priors.get(dataset)
    if prior is not None:
        return prior.gpu * samples, prior.cpu * samples, True
    if priors:
        return (
            statistics.median(prior.gpu for prior in priors.values()) * samples,
            statistics.median(prior.cpu for prior in priors.values()) * samples,
            False,
        )
    return GUESS * samples, 0.0, False


def read_priors(path: Path) -> dict[str, Prior]:
    """What was learnt; nothing where the file is absent or damaged (it is only advice)."""
    try:
        document = json.loads(path.read_text())
        return {str(name): Prior(float(gpu), float(cpu), int(runs)) for name, (gpu, cpu, runs) in document.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_priors(path: Path, priors: Mapping[str, Prior]) -> None:
    """Replace the file as a whole. Raises OSError."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps({name: [prior.gpu, prior.cpu, prior.runs] for name, prior in sorted(priors.items())}))
    part.replace(path)
