"""Loki push: JSON, or one snappy block of protobuf (loki:pkg/push/push.proto)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from rules.identity import subject_of
from service.ingest.protocol import Decoded, Limits, ProtocolError, StreamKey, parse_json

__all__ = ["decode_loki_json", "decode_loki_protobuf", "parse_labels"]

MAX_LABELS = 256
STAMP_DIGITS = 19
LABEL = re.compile(r'\s*([a-zA-Z_:][a-zA-Z0-9_:.]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|\}|$)')
ESCAPE = re.compile(r"\\(.)")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
PATH_LABELS = ("filename", "path", "file")
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def stream_of(labels: dict[str, str], job_keys: Sequence[str]) -> StreamKey:
    return stream_of_pairs(tuple(sorted(labels.items())), tuple(job_keys))


@lru_cache(maxsize=16_384)
def stream_of_pairs(pairs: tuple[tuple[str, str], ...], job_keys: tuple[str, ...]) -> StreamKey:
    labels = dict(pairs)
    subject = subject_of(labels, job_keys, scrape_label_counts=True)
    path = next((labels[name] for name in PATH_LABELS if labels.get(name)), "-")
    return StreamKey(subject.job, None, subject.node, subject.rank, path, pairs)


def decode_loki_json(data: bytes, limits: Limits, job_keys: Sequence[str]) -> Decoded:
    """Raises ProtocolError, naming the first stream or value that is wrong."""
    document = parse_json(data, "the body")
    streams = document.get("streams") if isinstance(document, dict) else None
    if not isinstance(streams, list):
        raise ProtocolError('the body must be {"streams": [...]}')
    decoded = Decoded()
    for number, entry in enumerate(streams):
        where = f"streams[{number}]"
        labels = entry.get("stream") if isinstance(entry, dict) else None
        values = entry.get("values") if isinstance(entry, dict) else None
        if not isinstance(labels, dict) or not isinstance(values, list):
            raise ProtocolError(f'{where} must be {{"stream": {{...}}, "values": [...]}}')
        if len(labels) > MAX_LABELS or not all(isinstance(value, str) for value in labels.values()):
            raise ProtocolError(f"{where}: labels must be at most {MAX_LABELS} strings")
        times, lines = entries_of(values, where)
        decoded.add(stream_of(labels, job_keys), [0] * len(lines), times, lines, limits)
    return decoded


def entries_of(values: list[Any], where: str) -> tuple[list[int], list[str]]:
    """Times and lines of `[["<nanoseconds>", "line", {...}?], ...]`. Raises ProtocolError, naming the first that is wrong."""
    try:
        stamps, lines = [value[0] for value in values], [value[1] for value in values]
        "".join(stamps), "".join(lines)
        times = list(map(int, stamps))
        if max(map(len, stamps), default=0) <= STAMP_DIGITS and min(times, default=0) >= 0:
            return times, lines
    except (TypeError, ValueError, IndexError, KeyError):
        pass
    for position, value in enumerate(values):
        if not isinstance(value, list) or len(value) not in (2, 3) or not isinstance(value[1], str):
            raise ProtocolError(f'{where}.values[{position}] must be ["<nanoseconds>", "line"]')
        if not isinstance(value[0], str) or not value[0].isdecimal() or len(value[0]) > STAMP_DIGITS:
            raise ProtocolError(f"{where}.values[{position}]: the time must be nanoseconds since the epoch, as a string")
    raise ProtocolError(f"{where}: malformed values")


def decode_loki_protobuf(data: bytes, limits: Limits, job_keys: Sequence[str]) -> Decoded:
    """`data` is the unsnapped PushRequest. Raises ProtocolError."""
    decoded = Decoded()
    try:
        for field, stream in fields(data):
            if field != 1 or not isinstance(stream, bytes):
                continue
            labels: dict[str, str] = {}
            entries: list[bytes] = []
            for name, value in fields(stream):
                if name == 1 and isinstance(value, bytes):
                    labels = parse_labels(value.decode("utf-8", "replace"))
                elif name == 2 and isinstance(value, bytes):
                    entries.append(value)
            times, lines = [], []
            for entry in entries:
                time_ns, line = protobuf_entry(entry)
                times.append(time_ns)
                lines.append(line.decode("utf-8", "replace"))
            decoded.add(stream_of(labels, job_keys), [0] * len(lines), times, lines, limits)
    except (IndexError, OverflowError):
        raise ProtocolError("the body is not a Loki PushRequest: it ends early") from None
    return decoded


def protobuf_entry(entry: bytes) -> tuple[int, bytes]:
    time_ns, line = 0, b""
    for name, value in fields(entry):
        if name == 1 and isinstance(value, bytes):
            parts = {part: number for part, number in fields(value) if isinstance(number, int)}
            time_ns = parts.get(1, 0) * 1_000_000_000 + parts.get(2, 0)
        elif name == 2 and isinstance(value, bytes):
            line = value
    if not 0 <= time_ns < 2**63:
        raise ProtocolError("an entry's timestamp is out of range")
    return time_ns, line


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of one protobuf message. Raises IndexError where it ends early, ProtocolError where it is none."""
    position, end = 0, len(data)
    while position < end:
        tag, position = varint(data, position)
        kind = tag & 7
        if kind == VARINT:
            number, position = varint(data, position)
            yield tag >> 3, number
            continue
        if kind == BYTES:
            size, position = varint(data, position)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ProtocolError("the body is not a Loki PushRequest")
        if position + size > end:
            raise IndexError
        yield tag >> 3, data[position : position + size]
        position += size


def varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ProtocolError("the body is not a Loki PushRequest")


def parse_labels(text: str) -> dict[str, str]:
    """The labels of `{a="x", b="y"}`. Raises ProtocolError."""
    inner = text.strip()
    if not inner.startswith("{") or not inner.endswith("}"):
        raise ProtocolError('stream labels must be {name="value", ...}')
    labels: dict[str, str] = {}
    position = 1
    while inner[position:].strip() not in ("}", ""):
        match = LABEL.match(inner, position)
        if match is None or len(labels) >= MAX_LABELS:
            raise ProtocolError(f'stream labels must be {{name="value", ...}}, at most {MAX_LABELS}')
        labels[match[1]] = ESCAPE.sub(lambda found: ESCAPES.get(found[1], found[1]), match[2])
        position = match.end()
        if match[3] == "}":
            break
    return labels
