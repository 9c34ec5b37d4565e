"""Findings: all that reading and matching brought out of a run's remains, ready to be ranked into one diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rules.diagnosis import Input
from rules.signal import Line, Signal

__all__ = ["Findings", "RankSpan"]


@dataclass(frozen=True, slots=True)
class RankSpan:
    """What is known of one rank's output: how much, and when it began and ended (seconds since the epoch)."""

    rank: int
    lines: int
    first_time: float | None = None
    last_time: float | None = None
    last_line: Line | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Signals in reading order, the span of each rank, and what was read.

    `measured`: signals from numbers in routine lines, which speak only where no signal says what failed.
    """

    signals: tuple[Signal, ...] = ()
    spans: Mapping[int, RankSpan] = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()
    lines: int = 0
    last_lines: tuple[Line, ...] = ()
    measured: tuple[Signal, ...] = ()
