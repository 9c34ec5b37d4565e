"""Follow files that ranks write: whole lines with their number, from an offset that can be resumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FileTail", "Position", "TailLine"]

READ_BYTES = 1 << 20
# A longer line is cut here: nobody may make the agent hold a file of one endless line in memory.
MAX_LINE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Position:
    """Everything before `offset` (bytes) was taken; it held `number` lines."""

    offset: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class TailLine:
    """`number` counts from 1 in the file."""

    number: int
    text: str


class FileTail:
    """Reads a growing file. `position` is where the lines that `read` gave so far end."""

    def __init__(self, path: Path, position: Position = Position()) -> None:
        self.path = path
        self.position = position

    def read(self, most_bytes: int = READ_BYTES, final: bool = False) -> Iterator[TailLine]:
        """The whole lines that were added, at most about `most_bytes`; `final`: also the last one without its line feed.

        A file that is not there yet has no lines. A file that became shorter is read from its new beginning.
        """
        try:
            with self.path.open("rb") as source:
                if self.path.stat().st_size < self.position.offset:
                    self.position = Position()
                source.seek(self.position.offset)
                block = source.read(max(most_bytes, MAX_LINE_BYTES))
        except FileNotFoundError:
            return
        end = block.rfind(b"\n") + 1
        if end < len(block) and (len(block) - end >= MAX_LINE_BYTES or (final and len(block) < max(most_bytes, MAX_LINE_BYTES))):
            end = len(block)
        if not end:
            return
        offset, number = self.position.offset, self.position.number
        for raw in split_lines(block[:end]):
            offset += len(raw)
            number += 1
            self.position = Position(offset, number)
            yield TailLine(number, raw.rstrip(b"\n").decode("utf-8", "replace"))


def split_lines(block: bytes) -> list[bytes]:
    """Lines end at a line feed only: a carriage return is a progress bar's, not a line's."""
    parts = block.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines
