"""Signals: single observations, with where they came from and what that source may be trusted to cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Line", "Role", "Signal", "SignalKind", "Trust"]


class Trust(StrEnum):
    """Who vouches for an observation. Policy acts beyond a job only on `NODE` and `CLUSTER`."""

    NODE = "node"
    CLUSTER = "cluster"
    JOB = "job"


class Role(StrEnum):
    """The part an observation plays in one failure."""

    ROOT = "root"
    CASCADE = "cascade"
    TEARDOWN = "teardown"
    CONTEXT = "context"


class SignalKind(StrEnum):
    LINE = "line"
    MEASUREMENT = "measurement"
    ALERT = "alert"
    LEASE = "lease"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class Line:
    """One line as a source holds it. `number` counts from 1; `time` is seconds since the epoch where the line bears one."""

    text: str
    number: int
    path: str = "-"
    rank: int | None = None
    node: str | None = None
    time: float | None = None
    trust: Trust = Trust.JOB


@dataclass(frozen=True, slots=True)
class Signal:
    """A rule's (or a detector's) finding on one line. Equal lines are counted, the first and the last kept."""

    rule: str
    reason: str
    role: Role
    line: Line
    kind: SignalKind = SignalKind.LINE
    captures: Mapping[str, str] = field(default_factory=dict)
    count: int = 1
    last: Line | None = None
