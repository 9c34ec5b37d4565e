"""Monitor files of one generation's ranks, read from outside."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pitstop import layout
from pitstop.layout import Progress

__all__ = ["MonitorReader", "RankReading", "create_monitors", "remove_monitors"]


@dataclass(frozen=True, slots=True)
class RankReading:
    """What a rank says of itself; `progress` None: it says nothing (not attached, or unreadable at this moment)."""

    progress: Progress | None
    metrics: Mapping[str, tuple[int, float]]
    attached: bool

    @property
    def step(self) -> int | None:
        """The step that it is in, or was in last."""
        return None if self.progress is None or self.progress.step < 0 else self.progress.step


NOTHING = RankReading(None, {}, False)


def create_monitors(paths: Mapping[int, Path], generation: int) -> None:
    """An empty file for each rank. Raises OSError."""
    for rank, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        layout.create(str(path), rank, generation)


def remove_monitors(paths: Iterable[Path]) -> None:
    folders = set()
    for path in paths:
        path.unlink(missing_ok=True)
        folders.add(path.parent)
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def reading_of(file: bytes) -> RankReading:
    try:
        header = layout.read_header(file)
    except layout.LayoutError:
        return NOTHING
    return RankReading(layout.read_progress(file, header), layout.read_metrics(file, header), header.pid != 0)


class MonitorReader:
    """Keeps the files of one generation mapped."""

    def __init__(self, paths: Mapping[int, Path]) -> None:
        self._maps: dict[int, mmap.mmap] = {}
        # What a rank says stays for many looks: making sense of it takes longer than seeing that it is the same.
        self._read: dict[int, tuple[bytes, RankReading]] = {}
        for rank, path in paths.items():
            with contextlib.suppress(OSError, ValueError), path.open("rb") as source:
                self._maps[rank] = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, rank: int) -> RankReading:
        mapped = self._maps.get(rank)
        if mapped is None:
            return NOTHING
        present = mapped[:]
        before = self._read.get(rank)
        if before is None or before[0] != present:
            before = self._read[rank] = present, reading_of(present)
        return before[1]

    def close(self) -> None:
        for mapped in self._maps.values():
            mapped.close()
        self._maps.clear()
