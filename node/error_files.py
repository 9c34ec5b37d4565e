"""Error files of one generation's ranks: an exception is told as soon as it is written, long before its process has ended."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from detectors.folder_events import FolderEvents
from detectors.supervisor import RankExit
from pitstop import protocol

__all__ = ["ErrorFiles", "read_error"]

NAME = re.compile(r"rank(\d+)\.error\.json")


def read_error(path: Path) -> dict[str, Any] | None:
    """What an error file says (`protocol.parse_error_document`); None where there is none yet, or none that can be read."""
    try:
        return protocol.parse_error_document(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


class ErrorFiles:
    """Watches `folder`, which holds the files of `generation`. `on_raised` hears of each rank's once, from any thread."""

    def __init__(self, folder: Path, generation: int, on_raised: Callable[[RankExit], None]) -> None:
        self._folder = folder
        self._generation = generation
        self._on_raised = on_raised
        self._told: set[int] = set()
        self._events: FolderEvents | None = None
        # Without events, `look` finds the files a tick later.
        with contextlib.suppress(OSError):
            self._events = FolderEvents(folder, self._appeared)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None

    def look(self, ranks: Iterable[int]) -> None:
        """Find the files where the system tells of none."""
        for rank in ranks if self._events is None else ():
            if rank not in self._told:
                self._tell(rank)

    def _appeared(self, name: str) -> None:
        found = NAME.fullmatch(name)
        if found:
            self._tell(int(found[1]))

    def _tell(self, rank: int) -> None:
        error = read_error(self._folder / f"rank{rank}.error.json")
        if error is None or rank in self._told:
            return
        self._told.add(rank)
        self._on_raised(
            RankExit(
                rank,
                self._generation,
                None,
                None,
                time.time(),
                error=error["message"],
                error_time=error["timestamp"],
                step=error["step"],
            )
        )
