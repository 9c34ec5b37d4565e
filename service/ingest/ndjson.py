"""NDJSON batches of the node agent: {"job", "attempt", "node", "rank", "path", "number", "time", "line"} a line."""

from __future__ import annotations

import math

from service.ingest.protocol import Decoded, Limits, ProtocolError, StreamKey, int_of, parse_json, text_of

__all__ = ["decode_ndjson"]

LATEST_SECONDS = 1e11


def decode_ndjson(data: bytes, limits: Limits, now: float) -> Decoded:
    """Raises ProtocolError, naming the first line that is wrong: a batch is stored whole or not at all."""
    decoded = Decoded()
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
        if (
            isinstance(time, bool)
            or not isinstance(time, int | float)
            or not math.isfinite(time)
            or not 0 <= time < LATEST_SECONDS
        ):
            raise ProtocolError(f"{where}: time must be seconds since the epoch")
        key = StreamKey(
            job=text_of(record, "job", where, 255),
            attempt=int_of(record, "attempt", where),
            node=text_of(record, "node", where, 255),
            rank=int_of(record, "rank", where),
            path=text_of(record, "path", where) or "-",
            # An agent says of lines that no job wrote (kernel, NVML, scheduler) that its node vouches for them.
            node_vouched=record.get("trust") == "node",
        )
        number = int_of(record, "number", where) or 0
        decoded.add(key, number, int(time * 1e9), line.encode("utf-8", "replace"), limits)
    return decoded
