"""What is inside a chunk: zstd frames of `number TAB nanoseconds TAB text NEWLINE`. Frames of one stream may be joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import zstandard

__all__ = ["ChunkEncoder", "KeptLine", "decode_chunk"]

LEVEL = 3


class KeptLine(NamedTuple):
    """One line as stored. `number` is 0 where its sender did not count."""

    number: int
    time_ns: int
    text: bytes


class ChunkEncoder:
    """Makes frames. One per thread: it keeps the compressor's tables, which cost more to set up than a small frame."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=LEVEL)

    def encode(self, lines: Iterable[tuple[int, int, bytes]]) -> bytes:
        """One frame; the text of a line holds no newline."""
        return self._compressor.compress(b"".join([b"%d\t%d\t%b\n" % line for line in lines]))


def decode_chunk(data: bytes) -> Iterator[KeptLine]:
    """The lines of every frame, in order."""
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        content = reader.readall()
    for line in content.split(b"\n"):
        if line:
            number, time_ns, text = line.split(b"\t", 2)
            yield KeptLine(int(number), int(time_ns), text)
