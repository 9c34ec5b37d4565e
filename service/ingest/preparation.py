"""From a body to what the writer stores: decode, redact, match, drop routine lines, compress. Runs in a matcher process."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from detectors.reading.text import strip_escapes
from rules.matcher import Matcher
from rules.pack import RuleRole
from rules.redaction import Redactor
from rules.signal import Trust
from service.chunks import encode_chunk
from service.ingest.loki import decode_loki_json, decode_loki_protobuf
from service.ingest.ndjson import decode_ndjson
from service.ingest.otlp import decode_otlp_json, decode_otlp_protobuf
from service.ingest.protocol import Decoded, Limits, LineRecord, StreamKey, decompressed

__all__ = ["Body", "Door", "Prepared", "PreparedStream", "prepare"]


class Door(StrEnum):
    NDJSON = "ndjson"
    LOKI = "loki"
    OTLP = "otlp"


@dataclass(frozen=True, slots=True)
class Body:
    """A request as it came. `vouching_node`: the node under whose own token it came."""

    door: Door
    data: bytes
    content_type: str
    encoding: str
    limits: Limits
    job_keys: tuple[str, ...]
    received_at: float
    vouching_node: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedStream:
    """Kept lines of one stream as a zstd frame, and how many were dropped by which rule."""

    key: str
    stream: StreamKey
    trust: Trust
    lines: int
    raw_bytes: int
    first_time: float
    last_time: float
    data: bytes
    dropped: dict[str, int]
    # 8 bytes for each kept line, where its sender may send it again in another batch.
    digests: bytes = b""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is to be stored of one body, and the counts that its sender is told."""

    streams: tuple[PreparedStream, ...] = ()
    accepted: int = 0
    kept: int = 0
    dropped: int = 0
    rejected: int = 0
    why_rejected: str = ""
    bytes: int = 0
    last_line_time: float | None = None
    identity: str = ""


def decode(body: Body, data: bytes) -> Decoded:
    as_json = "json" in body.content_type
    now_ns = int(body.received_at * 1e9)
    match body.door:
        case Door.NDJSON:
            return decode_ndjson(data, body.limits, body.received_at)
        case Door.OTLP if as_json:
            return decode_otlp_json(data, body.limits, body.job_keys, now_ns)
        case Door.OTLP:
            return decode_otlp_protobuf(data, body.limits, body.job_keys, now_ns)
        case Door.LOKI if as_json:
            return decode_loki_json(data, body.limits, body.job_keys)
        case Door.LOKI:
            return decode_loki_protobuf(decompressed(data, "snappy", body.limits), body.limits, body.job_keys)


def prepare(body: Body, matcher: Matcher, redactor: Redactor) -> Prepared:
    """Raises ProtocolError where the body is not what its door takes."""
    data = decompressed(body.data, body.encoding, body.limits)
    decoded = decode(body, data)
    # Of the content, not of the body: a sender that compresses again may not write the same bytes.
    identity = hashlib.sha256(data).hexdigest()
    texts: list[list[bytes]] = []
    for lines in decoded.streams.values():
        block = b"".join(line.text + b"\n" for line in lines)
        texts.append(redactor.redact(block).split(b"\n")[:-1])
    routine = routine_lines(matcher, b"".join(text + b"\n" for stream in texts for text in stream))
    streams: list[PreparedStream] = []
    start = 0
    for (key, lines), redacted in zip(decoded.streams.items(), texts, strict=True):
        streams.append(prepare_stream(key, lines, redacted, routine, start, body))
        start += len(redacted)
    accepted = sum(stream.lines for stream in streams) + sum(sum(stream.dropped.values()) for stream in streams)
    kept = sum(stream.lines for stream in streams)
    times = [line.time_ns for lines in decoded.streams.values() for line in lines[-1:]]
    return Prepared(
        streams=tuple(streams),
        accepted=accepted,
        kept=kept,
        dropped=accepted - kept,
        rejected=decoded.rejected,
        why_rejected=decoded.why,
        bytes=sum(len(text) + 1 for stream in texts for text in stream),
        last_line_time=max(times) / 1e9 if times else None,
        identity=identity,
    )


def routine_lines(matcher: Matcher, block: bytes) -> dict[int, tuple[str, bool]]:
    """Index of each line that only routine rules recognise -> (rule, whether it marks progress of the job)."""
    routine: dict[int, tuple[str, bool]] = {}
    signals: set[int] = set()
    for hit in matcher.scan(strip_escapes(block)):
        rule = matcher.rules[hit.rule]
        if rule.role is RuleRole.ROUTINE:
            routine.setdefault(hit.line, (rule.code, rule.marks is not None))
        else:
            signals.add(hit.line)
    for line in signals:
        routine.pop(line, None)
    return routine


def prepare_stream(
    key: StreamKey,
    lines: list[LineRecord],
    redacted: list[bytes],
    routine: dict[int, tuple[str, bool]],
    start: int,
    body: Body,
) -> PreparedStream:
    kept: list[tuple[int, int, bytes]] = []
    dropped: Counter[str] = Counter()
    # Of lines that mark the job's life only the last of a batch stays: where a run stood must remain visible.
    last_mark = next((index for index in range(len(lines) - 1, -1, -1) if routine.get(start + index, ("", False))[1]), None)
    for index, (line, text) in enumerate(zip(lines, redacted, strict=True)):
        verdict = routine.get(start + index)
        if verdict is None or index == last_mark:
            kept.append((line.number, line.time_ns, text))
        else:
            dropped[verdict[0]] += 1
    trust = Trust.NODE if key.node_vouched and key.node is not None and key.node == body.vouching_node else Trust.JOB
    times = [line.time_ns for line in lines]
    name = hashlib.sha256(json.dumps([*key[:5], key.labels, trust]).encode()).hexdigest()
    return PreparedStream(
        key=name,
        stream=key,
        trust=trust,
        lines=len(kept),
        raw_bytes=sum(len(text) + 1 for _, _, text in kept),
        first_time=min(times) / 1e9,
        last_time=max(times) / 1e9,
        data=encode_chunk(kept) if kept else b"",
        dropped=dict(dropped),
        # An agent's batches have ids of their own.
        digests=b"" if body.door is Door.NDJSON else digests_of(name, kept),
    )


def digests_of(stream: str, kept: list[tuple[int, int, bytes]]) -> bytes:
    """By stream, time, text, and which of several equal lines of the batch it is."""
    equal: Counter[tuple[int, bytes]] = Counter()
    prefix = stream.encode()
    digests = []
    for _, time_ns, text in kept:
        equal[time_ns, text] += 1
        content = b"%b %d %d %b" % (prefix, time_ns, equal[time_ns, text], text)
        digests.append(hashlib.blake2b(content, digest_size=8).digest())
    return b"".join(digests)
