"""From a body to what the writer stores: decode, redact, match, drop routine lines, compress. Runs in a matcher process."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from detectors.reading.text import strip_escapes
from rules.line_verdicts import BlockVerdicts, VerdictFinder
from rules.matcher import Matcher
from rules.pack import Rule
from rules.redaction import Redactor
from rules.scan_verdicts import KEEP
from rules.shapes import ShapePatterns
from rules.signal import Trust
from service.chunks import ChunkEncoder
from service.ingest.loki import decode_loki_json, decode_loki_protobuf
from service.ingest.ndjson import decode_ndjson
from service.ingest.otlp import decode_otlp_json, decode_otlp_protobuf
from service.ingest.protocol import Decoded, Limits, StreamKey, StreamLines, decompressed

__all__ = ["Body", "Door", "Filter", "Prepared", "PreparedStream", "Preparer"]


class Door(StrEnum):
    NDJSON = "ndjson"
    LOKI = "loki"
    OTLP = "otlp"


@dataclass(frozen=True, slots=True)
class Body:
    """A request as it came. `vouching_nodes`: those under whose own token it came."""

    door: Door
    data: bytes
    content_type: str
    encoding: str
    limits: Limits
    job_keys: tuple[str, ...]
    received_at: float
    vouching_nodes: tuple[str, ...] = ()


class PreparedStream(NamedTuple):
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


class Prepared(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class Filter:
    """A learnt routine rule in use; `jobs`: those whose lines it may drop, None: all."""

    rule: Rule
    jobs: frozenset[str] | None = None


class Preparer:
    """Prepares one body after another; lives in one thread."""

    def __init__(self, matcher: Matcher, shapes: ShapePatterns, redactor: Redactor) -> None:
        self._redactor = redactor
        self._verdicts = VerdictFinder(matcher, shapes)
        # Of learnt filters too, which are numbered after the rules.
        self._codes = [rule.code for rule in matcher.rules]
        self._rules = len(matcher.rules)
        self._marks = frozenset(number for number, rule in enumerate(matcher.rules) if rule.marks is not None)
        self._encoder = ChunkEncoder()
        self._filters: tuple[Filter, ...] = ()
        self._learnt = self._learnt_signals = Matcher(())

    def learn(self, filters: Sequence[Filter], signals: Matcher) -> None:
        """Drop what these filters find too, from now on, but nothing that the learnt `signals` find. Raises PackError."""
        self._learnt = Matcher([item.rule for item in filters])
        self._learnt_signals = signals
        self._filters = tuple(filters)
        self._codes[self._rules :] = [item.rule.code for item in filters]

    def prepare(self, body: Body) -> Prepared:
        """Raises ProtocolError where the body is not what its door takes."""
        data = decompressed(body.data, body.encoding, body.limits)
        decoded = decode(body, data)
        texts, block = self._redacted([lines.texts for lines in decoded.streams.values()])
        stripped = strip_escapes(block)
        verdicts = self._verdicts.find(stripped)
        if self._filters:
            jobs = [key.job for key, lines in zip(decoded.streams, texts, strict=True) for _ in lines]
            self._filter(stripped, jobs, verdicts)
        streams: list[PreparedStream] = []
        start = 0
        for (key, lines), redacted in zip(decoded.streams.items(), texts, strict=True):
            if redacted:
                end = start + len(redacted)
                streams.append(self._stream(body, key, lines, redacted, verdicts.rules[start:end]))
                start = end
        kept = sum([stream.lines for stream in streams])
        times = [lines.times[-1] for lines in decoded.streams.values() if lines.times]
        return Prepared(
            streams=tuple(streams),
            accepted=start,
            kept=kept,
            dropped=start - kept,
            rejected=decoded.rejected,
            why_rejected=decoded.why,
            bytes=len(block),
            last_line_time=max(times) / 1e9 if times else None,
            # Of the content, not of the body: a sender that compresses again may not write the same bytes.
            identity=hashlib.sha256(data).hexdigest(),
        )

    def _redacted(self, texts: list[list[bytes]]) -> tuple[list[list[bytes]], bytes]:
        """The lines of each stream without secrets, and all of them as one block."""
        block = block_of(texts)
        if self._redactor.redact(block) is block:
            return texts, block
        # By stream: a private key that never ends must not take the lines of others with it.
        texts = [self._redactor.redact(block_of([lines])).split(b"\n")[:-1] for lines in texts]
        return texts, block_of(texts)

    def _filter(self, block: bytes, jobs: Sequence[str | None], verdicts: BlockVerdicts) -> None:
        """Drop the lines that learnt filters find in logs of the jobs that they are for; never one that a signal rule finds."""
        rules = verdicts.rules
        signals = verdicts.signals | {hit.line for hit in self._learnt_signals.scan(block)}
        for hit in self._learnt.scan(block):
            item = self._filters[hit.rule]
            if rules[hit.line] == KEEP and hit.line not in signals and (item.jobs is None or jobs[hit.line] in item.jobs):
                rules[hit.line] = self._rules + hit.rule

    def _stream(self, body: Body, key: StreamKey, lines: StreamLines, texts: list[bytes], verdicts: list[int]) -> PreparedStream:
        dropped = Counter(verdicts)
        if not self._marks.isdisjoint(dropped):
            # Of lines that mark the job's life only the last of a batch stays: where a run stood must remain visible.
            last = max([index for index, rule in enumerate(verdicts) if rule in self._marks])
            dropped[verdicts[last]] -= 1
            verdicts[last] = KEEP
        dropped.pop(KEEP, None)
        numbers, times = lines.numbers, lines.times
        kept = [(numbers[index], times[index], texts[index]) for index, rule in enumerate(verdicts) if rule == KEEP]
        vouched = key.node_vouched and key.node in body.vouching_nodes
        trust = Trust.NODE if vouched else Trust.JOB
        name = stream_name(key, trust)
        return PreparedStream(
            key=name,
            stream=key,
            trust=trust,
            lines=len(kept),
            raw_bytes=sum([len(text) + 1 for _, _, text in kept]),
            first_time=min(times) / 1e9,
            last_time=max(times) / 1e9,
            data=self._encoder.encode(kept) if kept else b"",
            dropped={self._codes[rule]: count for rule, count in dropped.items() if count},
            # An agent's batches have ids of their own.
            digests=b"" if body.door is Door.NDJSON else digests_of(name, kept),
        )


def block_of(texts: list[list[bytes]]) -> bytes:
    return b"".join([text + b"\n" for lines in texts for text in lines])


@lru_cache(maxsize=16_384)
def stream_name(key: StreamKey, trust: Trust) -> str:
    """The same for the same key, in every process and for ever."""
    return hashlib.sha256(json.dumps([*key[:5], key.labels, trust]).encode()).hexdigest()


def digests_of(stream: str, kept: list[tuple[int, int, bytes]]) -> bytes:
    """By stream, time, text, and which of several equal lines of the batch it is."""
    equal: dict[tuple[int, bytes], int] = {}
    prefix = stream.encode()
    digests = []
    for _, time_ns, text in kept:
        place = (time_ns, text)
        equal[place] = ordinal = equal.get(place, 0) + 1
        digests.append(blake2b(b"%b %d %d %b" % (prefix, time_ns, ordinal, text), digest_size=8).digest())
    return b"".join(digests)
