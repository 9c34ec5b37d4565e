"""What carries a run's processes: a Protocol, local processes, and steps of a Slurm allocation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["Driver", "Ended"]


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ended: exit `status` (negative: by that signal). `lost`: killed from outside.

    `node_down`: why its node can take no more, in words, where that is known.
    """

    key: str
    status: int
    lost: bool = False
    node_down: str | None = None


class Driver(Protocol):
    """Starts processes on nodes and hears of their ends. Keys are the caller's; none is used twice."""

    def start(self, key: str, command: Sequence[str], node: str, environment: Mapping[str, str], log: Path) -> None:
        """Start `command` on `node` with `environment` on top of ours; its output is appended to `log`. Raises OSError."""

    def ended(self) -> list[Ended]:
        """What ended since the last call."""

    def stop(self, key: str) -> None:
        """Ask the process and all it started to end, and make them after a grace; its end is reported as any other's."""

    def close(self) -> None:
        """End all that still runs, and wait for it."""
