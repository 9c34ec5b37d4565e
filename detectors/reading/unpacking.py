"""What packed or otherwise encoded bytes unpack to, as streams that say where their input broke off."""

from __future__ import annotations

import codecs
import zlib
from typing import IO, Protocol, cast

from detectors.reading.zstd_frames import ZstdFrames

__all__ = [
    "GZIP_MAGIC",
    "ZSTD_MAGIC",
    "FollowedReader",
    "GzipStream",
    "Limited",
    "Readable",
    "Rejoined",
    "Utf16Stream",
    "ZstdStream",
]

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Packed bytes are taken so many at a time.
READ_BYTES = 1 << 20
MAX_ZSTD_WINDOW = 1 << 27


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class GzipStream:
    """The content of concatenated gzip members; `note` tells where it broke off."""

    def __init__(self, raw: Readable) -> None:
        self._raw = raw
        self._inflater = zlib.decompressobj(wbits=31)
        self._pending = b""
        self._read = 0
        self.note = ""

    @property
    def taken(self) -> int:
        """Packed bytes that were unpacked."""
        return self._read - len(self._pending)

    def read(self, size: int, /) -> bytes:
        while not self.note:
            if self._inflater.eof:
                rest = self._inflater.unused_data.lstrip(b"\0")
                self._pending = rest or self._raw.read(READ_BYTES)
                if not self._pending:
                    return b""
                if not self._pending.startswith(GZIP_MAGIC[: len(self._pending)]):
                    self.note = "bytes after the end of the gzip data were left out"
                    return b""
                self._read += 0 if rest else len(self._pending)
                self._inflater = zlib.decompressobj(wbits=31)
            elif not self._pending:
                self._pending = self._raw.read(READ_BYTES)
                self._read += len(self._pending)
                if not self._pending:
                    self.note = "the gzip data ends early: read as far as it goes"
                    return self._inflater.flush()
            try:
                data = self._inflater.decompress(self._pending, size)
            except zlib.error:
                self.note = "the gzip data is damaged: read as far as it goes"
                return b""
            self._pending = self._inflater.unconsumed_tail
            if data:
                return data
        return b""


class ZstdStream:
    """The content of concatenated zstd frames; `note` tells where it broke off."""

    def __init__(self, raw: Readable) -> None:
        # Not at the top: most logs are not packed so.
        import zstandard

        self._raw = FollowedReader(raw)
        self._damage = zstandard.ZstdError
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW)
        self._reader = decompressor.stream_reader(cast(IO[bytes], self._raw), read_across_frames=True)
        self.note = ""

    @property
    def taken(self) -> int:
        return self._raw.taken

    def read(self, size: int, /) -> bytes:
        if self.note:
            return b""
        try:
            data = self._reader.read(size)
        except self._damage:
            self.note = "the zstd data is damaged: read as far as it goes"
            return b""
        if not data and not self._raw.frames.complete:
            self.note = "the zstd data ends early: read as far as it goes"
        elif not data and self._raw.is_followed_by_others:
            self.note = "bytes after the end of the zstd data were left out"
        return data


class FollowedReader:
    """The frames that `raw` holds, without what follows them; counts their bytes."""

    def __init__(self, raw: Readable) -> None:
        self._raw = raw
        self.taken = 0
        self.frames = ZstdFrames()
        self.is_followed_by_others = False
        self._held = b""

    def read(self, size: int = -1, /) -> bytes:
        while data := self._raw.read(size if size > 0 else READ_BYTES):
            framed = len(self._held) + self.frames.feed(data) - self.frames.undecided
            data = self._held + data
            self._held = data[framed:] if self.frames.undecided else b""
            # Zeros are padding, as they are after gzip's members.
            self.is_followed_by_others |= bool(data[framed:].strip(b"\0")) and not self._held
            self.taken += framed
            if framed:
                return data[:framed]
        return b""


class Utf16Stream:
    """Text that an editor or a shell of Windows wrote as UTF-16, as UTF-8; what is malformed in it is replaced."""

    def __init__(self, head: bytes, raw: Readable) -> None:
        self._raw = Rejoined(head, raw)
        self._decode = codecs.getincrementaldecoder("utf-16")("replace").decode

    def read(self, size: int, /) -> bytes:
        # A character takes at most twice as many bytes in UTF-8 as here, give or take what was begun before.
        while data := self._raw.read(max(size // 2, 1)):
            if text := self._decode(data):
                return text.encode("utf-8", "replace")
        return self._decode(b"", True).encode("utf-8", "replace")


class Limited:
    """The next `size` bytes of a stream."""

    def __init__(self, raw: Readable, size: int) -> None:
        self._raw = raw
        self._left = size

    def read(self, size: int, /) -> bytes:
        data = self._raw.read(min(size, self._left))
        self._left -= len(data)
        return data


class Rejoined:
    """A stream whose first bytes were looked at already."""

    def __init__(self, head: bytes, raw: Readable) -> None:
        self._head = head
        self._raw = raw

    def read(self, size: int, /) -> bytes:
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        return self._raw.read(size)
