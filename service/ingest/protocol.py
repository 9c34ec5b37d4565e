"""What the decoders of foreign protocols give: lines by stream, or one error."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cramjam
import zstandard

from detectors.reading.zstd_frames import ZstdFrames

__all__ = [
    "Decoded",
    "Limits",
    "ProtocolError",
    "StreamKey",
    "StreamLines",
    "TooLarge",
    "cut",
    "decompressed",
    "int_of",
    "parse_json",
    "text_of",
]


class ProtocolError(ValueError):
    """A body that is not what its door takes; one line that says what is wrong. Nothing of it was stored."""


class TooLarge(ProtocolError):
    """A body over a limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a body may hold: bytes after decompression, bytes of one line, levels of nesting."""

    decoded_bytes: int
    line_bytes: int
    nesting: int


class StreamKey(NamedTuple):
    """What makes a stream: lines of one key are in one order. `labels` are sorted pairs, kept as they came."""

    job: str | None
    attempt: int | None
    node: str | None
    rank: int | None
    path: str
    labels: tuple[tuple[str, str], ...] = ()
    node_vouched: bool = False


@dataclass(slots=True)
class StreamLines:
    """Lines without their newlines. `numbers` count from 1 in the file, 0 where nobody counted; `times` in nanoseconds."""

    texts: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Decoded:
    """Lines by stream, in the order of the body. `rejected` records could not be taken; `why` says so of the first."""

    streams: dict[StreamKey, StreamLines] = field(default_factory=dict)
    rejected: int = 0
    why: str = ""

    def add(self, key: StreamKey, numbers: list[int], times: list[int], texts: list[str], limits: Limits) -> None:
        """Records of one stream; one that holds several lines becomes several of the same number and time."""
        block = "\n".join(texts).encode("utf-8", "replace")
        lines = block.split(b"\n")
        if len(lines) != len(texts) or b"\r" in block:
            numbers, times, lines = divided(numbers, times, texts)
        if max(map(len, lines), default=0) > limits.line_bytes:
            lines = [cut(line, limits.line_bytes) for line in lines]
        found = self.streams.setdefault(key, StreamLines())
        found.texts += lines
        found.times += times
        found.numbers += numbers


def divided(numbers: list[int], times: list[int], texts: list[str]) -> tuple[list[int], list[int], list[bytes]]:
    """The lines of records that hold several, or whose lines end like a DOS file's."""
    lines = [
        (number, time_ns, part.removesuffix("\r").encode("utf-8", "replace"))
        for number, time_ns, text in zip(numbers, times, texts, strict=True)
        for part in text.removesuffix("\n").split("\n")
    ]
    return [line[0] for line in lines], [line[1] for line in lines], [line[2] for line in lines]


def cut(text: bytes, limit: int) -> bytes:
    """`text`, at most `limit` bytes of it and then a note of how much was cut."""
    if len(text) <= limit:
        return text
    return text[:limit] + b" [pitstop: %d more bytes cut]" % (len(text) - limit)


def decompressed(body: bytes, encoding: str, limits: Limits) -> bytes:
    """`body` without its Content-Encoding (gzip, deflate, zstd, snappy, identity). Raises ProtocolError."""
    limit = limits.decoded_bytes
    try:
        if encoding in ("", "identity"):
            data = body
        elif encoding == "gzip":
            data = gunzipped(body, limit + 1)
        elif encoding == "deflate":
            data = inflated(body, limit + 1)
        elif encoding == "zstd":
            data = unpacked_frames(body, limit + 1)
        elif encoding == "snappy":
            data = unsnapped(body, limits)
        else:
            raise ProtocolError(f"Content-Encoding {encoding[:40]!r} is not taken: use gzip or none")
    except EOFError:
        raise ProtocolError(f"the {encoding} data ends early") from None
    except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise ProtocolError(f"the {encoding} data is damaged: {error}") from None
    if len(data) > limit:
        raise TooLarge(f"the body has more than {limit} bytes after decompression: send smaller pieces")
    return data


def gunzipped(body: bytes, most: int) -> bytes:
    """All members of `body`, or its first `most` bytes. Raises EOFError where the last is not whole, OSError, zlib.error."""
    with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
        return file.read(most)


def inflated(body: bytes, most: int) -> bytes:
    """The zlib stream `body`, or its first `most` bytes. Raises EOFError where it is not whole, zlib.error."""
    inflater = zlib.decompressobj()
    data = inflater.decompress(body, most)
    if len(data) < most and not inflater.eof:
        raise EOFError
    if inflater.unused_data:
        raise zlib.error("something follows its end")
    return data


def unpacked_frames(body: bytes, most: int) -> bytes:
    """All zstd frames of `body`, or its first `most` bytes. Raises EOFError where the last is not whole, ZstdError."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
    with decompressor.stream_reader(body, read_across_frames=True) as reader:
        data = reader.read(most)
    frames = ZstdFrames()
    frames.feed(body)
    if len(data) < most and not frames.complete:
        raise EOFError
    return data


def unsnapped(body: bytes, limits: Limits) -> bytes:
    """One raw snappy block, as Loki's and Prometheus' clients send."""
    size = shift = 0
    for byte in body[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise ProtocolError("the body is not a snappy block")
    if size > limits.decoded_bytes:
        raise TooLarge(f"the body has more than {limits.decoded_bytes} bytes after decompression: send smaller pieces")
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError:
        raise ProtocolError("the body is not a snappy block") from None


def parse_json(data: bytes, what: str) -> Any:
    """Raises ProtocolError."""
    try:
        return json.loads(data)
    except UnicodeDecodeError:
        raise ProtocolError(f"{what}: not UTF-8") from None
    except RecursionError:
        raise ProtocolError(f"{what}: the JSON nests too deep") from None
    except ValueError as error:
        raise ProtocolError(f"{what}: not JSON: {error}") from None


def text_of(value: Mapping[str, Any], name: str, where: str, limit: int = 4096) -> str | None:
    """An optional string field. Raises ProtocolError where it is something else."""
    found = value.get(name)
    if found is None:
        return None
    if not isinstance(found, str) or len(found) > limit or "\0" in found:
        raise ProtocolError(f"{where}: {name} must be a string of at most {limit} characters")
    return found


def int_of(value: Mapping[str, Any], name: str, where: str) -> int | None:
    """An optional whole number, not negative. Raises ProtocolError where it is something else."""
    found = value.get(name)
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 2**53:
        raise ProtocolError(f"{where}: {name} must be a whole number from 0")
    return found
