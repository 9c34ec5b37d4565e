"""What to read, and its bytes as blocks of whole lines in bounded memory, however long a file or a line is."""

from __future__ import annotations

import codecs
import io
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from detectors.reading.unpacking import (
    GZIP_MAGIC,
    ZSTD_MAGIC,
    GzipStream,
    Limited,
    Readable,
    Rejoined,
    Utf16Stream,
    ZstdStream,
)
from rules.file_errors import why_unread

__all__ = ["BLOCK_BYTES", "MAX_LINE_BYTES", "Block", "LineReader", "Source", "UnreadableInput", "find_sources", "text_source"]

BLOCK_BYTES = 1 << 20
# A longer line is matched by its beginning and its end, this much in all; its number stands.
MAX_LINE_BYTES = 1 << 19
HEAD_BYTES = 1 << 16
# Nothing that writes logs reaches this ratio; what does is made to exhaust its reader.
MAX_EXPANSION = 900
EXPANSION_ALLOWANCE = 256 << 20


class UnreadableInput(Exception):
    """An input that cannot be read; the message is one line that says what to do, `why` the part of it after the path."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why or message


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines, each ended by a newline. `first` is the number of the first one, from 1; `lines` how many there are."""

    data: bytes
    first: int
    lines: int


@dataclass(frozen=True, slots=True)
class Source:
    """One thing to read: a file by its path, standard input (`-`), or bytes already at hand.

    `is_entry`: found in a folder, not named; where it cannot be read the others still can. `refused`: why it cannot be, where
    that was seen already.
    """

    path: str
    content: bytes | None = None
    is_entry: bool = False
    refused: str = ""

    def open(self) -> BinaryIO:
        """The raw bytes. Raises UnreadableInput."""
        if self.refused:
            raise UnreadableInput(f"cannot read {self.path}: {self.refused}", self.refused)
        if self.content is not None:
            return io.BytesIO(self.content)
        if self.path == "-":
            if sys.stdin is None:
                raise UnreadableInput("cannot read standard input: it is closed; name a file, or pipe a log in", "it is closed")
            return sys.stdin.buffer
        try:
            # A named pipe without a writer must read as empty instead of blocking for ever.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(self.path, error) from None
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb", buffering=0)


def text_source(content: bytes, path: str = "-") -> Source:
    """Bytes that somebody else has read already, as a source."""
    return Source(path, content)


def unreadable(path: str, error: OSError) -> UnreadableInput:
    why = why_unread(error)
    return UnreadableInput(f"cannot read {path}: {why}", why)


def find_sources(paths: Sequence[str]) -> list[Source]:
    """Every regular file under `paths`, directories walked in name order, each file once; `-` is standard input.

    What stands in a directory and cannot be read is among them, `refused` or to be refused when it is opened. Raises
    UnreadableInput for a path that does not exist or may not be read, a device, or paths that hold no file at all.
    """
    found: dict[tuple[int, int] | str, Source] = {}
    for path in paths:
        if path == "-":
            found.setdefault("-", Source("-"))
            continue
        try:
            status = Path(path).stat()
        except OSError as error:
            raise unreadable(path, error) from None
        if stat.S_ISDIR(status.st_mode):
            for source, identity in walk(path):
                found.setdefault(identity, source)
        elif stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode):
            found.setdefault((status.st_dev, status.st_ino), Source(path))
        else:
            kind = "a socket" if stat.S_ISSOCK(status.st_mode) else "a device, which has no end"
            raise UnreadableInput(f"cannot read {path}: it is {kind}; name a file, a directory, or - for standard input")
    if not found:
        raise UnreadableInput(f"nothing to read under {', '.join(paths)}: no regular file there")
    return list(found.values())


def walk(folder: str) -> Iterator[tuple[Source, tuple[int, int] | str]]:
    """Regular files below `folder`, and what cannot be looked at, each with what tells whether it was seen before; links to
    directories are not followed, pipes and devices are passed over."""
    refused: list[OSError] = []
    for parent, folders, names in os.walk(folder, onerror=refused.append):
        folders.sort()
        for name in sorted(names):
            path = str(Path(parent) / name)
            try:
                status = Path(path).stat()
            except OSError as error:
                yield refusal(path, error)
                continue
            if stat.S_ISREG(status.st_mode):
                yield Source(path, is_entry=True), (status.st_dev, status.st_ino)
    for failure in refused:
        path = str(failure.filename or folder)
        if path == folder:
            raise unreadable(folder, failure) from None
        yield refusal(path, failure)


def refusal(path: str, error: OSError) -> tuple[Source, str]:
    return Source(path, is_entry=True, refused=unreadable(path, error).why), path


class LineReader:
    """The lines of one source in blocks. Iterate once; `lines`, `bytes` and `note` are final after that.

    `head` is the first 64 KiB (decompressed), for telling what the source is before reading it; `modified` is when a file was
    last written (seconds since the epoch). Raises UnreadableInput
    where the source cannot be opened or its first byte cannot be read; trouble after that ends the reading with a `note`.
    """

    def __init__(self, source: Source, block_bytes: int = BLOCK_BYTES) -> None:
        self.source = source
        self.lines = 0
        self.bytes = 0
        self.note = ""
        self.modified: float | None = None
        self._is_regular = False
        # Of a file that is being written, what was there when it was opened; the others tell their end.
        self._size: int | None = None
        self._block_bytes = block_bytes
        self._raw = source.open()
        try:
            if source.content is None and source.path != "-":
                status = os.fstat(self._raw.fileno())
                self.modified, self._is_regular = status.st_mtime, stat.S_ISREG(status.st_mode)
                # Those of /proc say 0.
                self._size = status.st_size if self._is_regular and status.st_size else None
            raw = self._raw if self._size is None else Limited(self._raw, self._size)
            head = read_up_to(raw, HEAD_BYTES)
            self._stream: Readable = Rejoined(head, raw)
            self._packed: GzipStream | ZstdStream | None = None
            if head.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
                self._is_regular = False
                self._packed = GzipStream(self._stream) if head.startswith(GZIP_MAGIC) else ZstdStream(self._stream)
                head = read_up_to(self._packed, HEAD_BYTES)
                self.note = self._packed.note
                self._stream = Rejoined(head, self._packed)
            if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                self._is_regular = False
                text = Utf16Stream(head, self._packed or raw)
                head = read_up_to(text, HEAD_BYTES)
                self._stream = Rejoined(head, text)
        except OSError as error:
            self.close()
            raise unreadable(source.path, error) from None
        self.head = head

    def close(self) -> None:
        if self.source.path != "-" or self.source.content is not None:
            self._raw.close()

    def __enter__(self) -> LineReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_whole(self, limit: int) -> bytes | None:
        """All of it, or None where it is larger than `limit`; the blocks can be iterated afterwards either way."""
        data = read_up_to(self._stream, limit + 1)
        self._stream = Rejoined(data, self._stream)
        return data if len(data) <= limit else None

    def _read(self) -> bytes:
        try:
            data = self._stream.read(self._block_bytes)
        except OSError as error:
            self.note = f"reading stopped early: {error.strerror or error}"
            return b""
        self.bytes += len(data)
        if self._packed is not None:
            if self.bytes > EXPANSION_ALLOWANCE and self.bytes > MAX_EXPANSION * max(self._packed.taken, 1):
                self.note = f"expands more than {MAX_EXPANSION} times: only the first {self.bytes >> 20} MiB were read"
                return b""
            self.note = self._packed.note
        return data

    def _read_at(self, position: int) -> bytes:
        try:
            # The head makes the first block, as it does where a stream is read.
            size = self._block_bytes if position else min(HEAD_BYTES, self._block_bytes)
            return os.pread(self._raw.fileno(), size if self._size is None else min(size, self._size - position), position)
        except OSError as error:
            self.note = f"reading stopped early: {error.strerror or error}"
            return b""

    def __iter__(self) -> Iterator[Block]:
        for data in self.chunks():
            first, count = self.lines + 1, data.count(b"\n")
            self.lines += count
            yield Block(data, first, count)

    def views(self) -> Iterator[memoryview]:
        """The same as chunks, of a regular file without copying; each view is all lines of the bytes that it is a view of."""
        position = 0
        while self._is_regular and (data := self._read_at(position)):
            cut = data.rfind(b"\n") + 1
            if not cut:
                break
            position += cut
            self.bytes = position
            yield memoryview(data)[:cut]
        if self._is_regular:
            # The rest: nothing, a last line without an end, or a line longer than a block.
            self._raw.seek(position)
            self._stream = self._raw if self._size is None else Limited(self._raw, self._size - position)
        for chunk in self.chunks():
            yield memoryview(chunk)
        if self._is_regular and self._size is not None and self.bytes < self._size:
            self.note = self.note or "it was cut short while it was read"

    def chunks(self) -> Iterator[bytes]:
        """The same, for those who count lines themselves: `lines` stays 0."""
        carry = b""
        while data := self._read():
            cut = data.rfind(b"\n") + 1
            if not cut:
                carry = shortened(carry + data)
                continue
            yield b"".join((carry, memoryview(data)[:cut])) if carry or cut < len(data) else data
            carry = data[cut:]
        if carry:
            yield carry + b"\n"


def read_up_to(stream: Readable, size: int) -> bytes:
    """`size` bytes, or fewer where the stream ends before."""
    parts: list[bytes] = []
    while size > 0 and (data := stream.read(size)):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def shortened(line: bytes) -> bytes:
    """`line` with its middle left out where it is too long to hold: what it begins with and what it ends with remain."""
    if len(line) <= 2 * MAX_LINE_BYTES:
        return line
    half = MAX_LINE_BYTES // 2
    return line[:half] + line[-half:]
