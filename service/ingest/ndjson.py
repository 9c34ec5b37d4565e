"""NDJSON batches of the node agent: {"job", "attempt", "node", "rank", "path", "number", "time", "line"} a record.

A record with `lines` holds that many lines of a file in a row, each with its line feed, of which `number` is the first one's.
"""

from __future__ import annotations

from typing import Any

from service.ingest.protocol import Decoded, Limits, ProtocolError, StreamKey, int_of, parse_json, text_of

__all__ = ["decode_ndjson"]

LATEST_SECONDS = 1e11


def decode_ndjson(data: bytes, limits: Limits, now: float) -> Decoded:
    """Raises ProtocolError, naming the first line that is wrong: a batch is stored whole or not at all."""
    gathered: dict[StreamKey, tuple[list[int], list[int], list[str]]] = {}
    for index, raw in enumerate(data.split(b"\n"), 1):
        if not raw or raw.isspace():
            continue
        where = f"line {index}"
        record = parse_json(raw, where)
        if not isinstance(record, dict):
            raise ProtocolError(f"{where}: not a JSON object")
        line = record.get("line")
        if not isinstance(line, str):
            raise ProtocolError(f"{where}: line must be a string")
        time = record.get("time", now)
        if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < LATEST_SECONDS:
            raise ProtocolError(f"{where}: time must be seconds since the epoch")
        number = int_of(record, "number", where) or 0
        held = lines_of(record, line, where)
        numbers, times, texts = gathered.setdefault(stream_of(record, where), ([], [], []))
        numbers += range(number, number + len(held)) if number else [0] * len(held)
        times += [int(time * 1e9)] * len(held)
        texts += held
    decoded = Decoded()
    for key, (numbers, times, texts) in gathered.items():
        decoded.add(key, numbers, times, texts, limits)
    return decoded


def lines_of(record: dict[str, Any], line: str, where: str) -> list[str]:
    count = int_of(record, "lines", where)
    if count is None:
        return [line]
    if not line.endswith("\n") or line.count("\n") != count:
        raise ProtocolError(f"{where}: line must hold as many lines as lines says, each with its line feed")
    return line[:-1].split("\n")


def stream_of(record: dict[str, Any], where: str) -> StreamKey:
    return StreamKey(
        job=text_of(record, "job", where, 255),
        attempt=int_of(record, "attempt", where),
        node=text_of(record, "node", where, 255),
        rank=int_of(record, "rank", where),
        path=text_of(record, "path", where) or "-",
        # An agent says of lines that no job wrote (kernel, NVML, scheduler) that its node vouches for them.
        node_vouched=record.get("trust") == "node",
    )
