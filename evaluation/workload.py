"""What an evaluation run consists of: datasets, the pieces they are cut into, and the slots that take them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Dataset", "Piece", "Slot", "Span", "cut", "missing", "total"]

Span = tuple[int, int]
"""Samples [first, last) of a dataset, counted from 0."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """`samples` prompts. Seconds are for all of them: on one slot with the model in place, and on one CPU worker.

    `known` is False where the run times are guessed rather than given or measured. `splittable` is False where the samples
    depend on one another (a conversation) or the runner takes whole datasets only. Datasets of one `runner` can share a process;
    an empty one shares with nobody.
    """

    name: str
    samples: int
    gpu_seconds: float
    cpu_seconds: float = 0.0
    known: bool = True
    splittable: bool = True
    runner: str = "one"


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Samples [first, last) of one dataset, generated in one go and verified in one go; expected seconds of both."""

    dataset: str
    first: int
    last: int
    gpu_seconds: float
    cpu_seconds: float
    runner: str = "one"

    @property
    def span(self) -> Span:
        return (self.first, self.last)


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """Room for one trial: accelerator `index` of `node`."""

    node: str
    index: int

    def __str__(self) -> str:
        return f"{self.node}:{self.index}"


def total(spans: Iterable[Span]) -> int:
    """Samples in `spans`."""
    return sum(last - first for first, last in spans)


def missing(samples: int, present: Iterable[int]) -> list[Span]:
    """The gaps of `present` in [0, samples), in order."""
    gaps: list[Span] = []
    expected = 0
    for sample in sorted({sample for sample in present if 0 <= sample < samples}):
        if sample > expected:
            gaps.append((expected, sample))
        expected = sample + 1
    if expected < samples:
        gaps.append((expected, samples))
    return gaps


def cut(datasets: Sequence[Dataset], spans: Mapping[str, Sequence[Span]], limit: float) -> list[Piece]:
    """The `spans` of each dataset as pieces that take at most `limit` seconds in either part, where it can be split.

    A dataset that is absent from `spans` is whole. Pieces of one span differ by at most one sample.
    """
    pieces: list[Piece] = []
    for dataset in datasets:
        gpu, cpu = dataset.gpu_seconds / dataset.samples, dataset.cpu_seconds / dataset.samples
        for first, last in spans.get(dataset.name, [(0, dataset.samples)]):
            count = last - first
            parts = 1
            if dataset.splittable and limit > 0:
                parts = min(count, max(1, math.ceil(max(gpu, cpu) * count / limit - 1e-9)))
            for part in range(parts):
                start, end = first + count * part // parts, first + count * (part + 1) // parts
                pieces.append(Piece(dataset.name, start, end, gpu * (end - start), cpu * (end - start), dataset.runner))
    return pieces
