"""Follow files that ranks write: whole lines with their number, from an offset that can be resumed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FileTail", "Position"]

READ_BYTES = 1 << 20
# A longer line is cut here: nobody may make the agent hold a file of one endless line in memory.
MAX_LINE_BYTES = 256 << 10
LINE_FEED = 0x0A


@dataclass(frozen=True, slots=True)
class Position:
    """Everything before `offset` (bytes) was taken; it held `number` lines."""

    offset: int = 0
    number: int = 0


class FileTail:
    """Reads a growing file. `position` is where the lines that `read` gave so far end."""

    def __init__(self, path: Path, position: Position = Position()) -> None:
        self.path = path
        self.position = position

    def at_end(self) -> bool:
        return self.position.offset == self._size()

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, most_bytes: int = READ_BYTES, final: bool = False) -> list[str]:
        """The lines of `read_block`. The first of them has the number `position.number` + 1, as it was before."""
        block = self.read_block(most_bytes, final)
        return block.removesuffix(b"\n").decode("utf-8", "replace").split("\n") if block else []

    def read_block(self, most_bytes: int = READ_BYTES, final: bool = False) -> bytes:
        """The whole lines that were added, at most about `most_bytes`; `final`: also the last one without its line feed.

        A carriage return starts no line: it is a progress bar's. A file that is not there yet has no lines; one that became
        shorter is read from its new beginning.
        """
        size = self._size()
        if size < self.position.offset:
            self.position = Position()
        if size == self.position.offset:
            return b""
        # Room that is not needed costs more than the lines: it is new memory with each reading.
        room = min(max(most_bytes, MAX_LINE_BYTES), size - self.position.offset)
        # A file object costs more than the call, and every rank's file is read several times a second.
        source = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            block = os.pread(source, room, self.position.offset)
        finally:
            os.close(source)
        end = block.rfind(b"\n") + 1
        if end < len(block) and (len(block) - end >= MAX_LINE_BYTES or (final and self.position.offset + len(block) >= size)):
            end = len(block)
        if not end:
            return b""
        lines = block.count(b"\n", 0, end) + (block[end - 1] != LINE_FEED)
        self.position = Position(self.position.offset + end, self.position.number + lines)
        return block[:end]
