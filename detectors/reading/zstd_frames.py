"""Where zstd frames end: the decompressor does not say that its input broke off within one.

Source: RFC 8878, section 3.1 (frames, blocks, skippable frames).
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["ZstdFrames"]

MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE = b"\x2a\x4d\x18"
CHECKSUM_BYTES = 4
DICTIONARY_ID_BYTES = (0, 1, 2, 4)
CONTENT_SIZE_BYTES = (0, 2, 4, 8)
RLE_BLOCK = 1


class ZstdFrames:
    """Follows packed bytes as they are read."""

    def __init__(self) -> None:
        self._step: Callable[[bytes], None] = self._magic
        self._field = b""
        self._wanted = len(MAGIC)
        self._skip = 0
        self._checksum = 0

    @property
    def complete(self) -> bool:
        """Whether the bytes so far end with a frame; or with what is none, which is the decompressor's to refuse."""
        return self._wanted == 0 or (self._step == self._magic and not self._field and not self._skip)

    @property
    def undecided(self) -> int:
        """How many of the last bytes may begin a frame or be none."""
        return len(self._field) if self._step == self._magic and self._wanted else 0

    def feed(self, data: bytes) -> int:
        """How many bytes of `data` come before what is no frame: all of them where nothing else shows, fewer than none where
        bytes before it were none already."""
        position = 0
        if not self._wanted:
            return 0
        while position < len(data) and self._wanted:
            if self._skip:
                passed = min(self._skip, len(data) - position)
                self._skip -= passed
                position += passed
                continue
            taken = data[position : position + self._wanted - len(self._field)]
            position += len(taken)
            self._field += taken
            if len(self._field) == self._wanted:
                field, self._field = self._field, b""
                self._step(field)
        return len(data) if self._wanted else position - len(MAGIC)

    def _expect(self, step: Callable[[bytes], None], wanted: int) -> None:
        self._step, self._wanted = step, wanted

    def _magic(self, field: bytes) -> None:
        if field == MAGIC:
            self._expect(self._descriptor, 1)
        elif field[1:] == SKIPPABLE:
            self._expect(self._skippable, 4)
        else:
            self._wanted = 0

    def _skippable(self, field: bytes) -> None:
        self._skip = int.from_bytes(field, "little")
        self._expect(self._magic, len(MAGIC))

    def _descriptor(self, field: bytes) -> None:
        flags = field[0]
        single_segment = flags >> 5 & 1
        content_size = CONTENT_SIZE_BYTES[flags >> 6] or single_segment
        self._checksum = CHECKSUM_BYTES if flags >> 2 & 1 else 0
        self._skip = (not single_segment) + DICTIONARY_ID_BYTES[flags & 3] + content_size
        self._expect(self._block, 3)

    def _block(self, field: bytes) -> None:
        header = int.from_bytes(field, "little")
        self._skip = 1 if header >> 1 & 3 == RLE_BLOCK else header >> 3
        if header & 1:
            self._skip += self._checksum
            self._expect(self._magic, len(MAGIC))
