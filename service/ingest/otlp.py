"""OTLP/HTTP logs: protobuf or JSON (opentelemetry-specification, logs/data-model; opentelemetry-proto, logs/v1)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)

from rules.identity import RANK_KEYS, subject_of
from service.ingest.protocol import Decoded, Limits, ProtocolError, StreamKey, parse_json

__all__ = ["decode_otlp_json", "decode_otlp_protobuf", "partial_success"]

MAX_LABELS = 256
MAX_LABEL_BYTES = 4096
LATEST_NS = 2**63
PATH_KEYS = ("log.file.path", "log.file.name", "service.name")
# What a record says about itself, beside its resource: only these tell streams apart, so that a trace id in an attribute does
# not make a stream of its own.
RECORD_KEYS = frozenset(RANK_KEYS) | frozenset(
    ("gpu.uuid", "gpu.serial", "host.name", "node", "log.file.path", "log.file.name", "log.iostream")
)
STACKTRACE = "exception.stacktrace"


class Streams:
    """Finds the stream of a record by its resource and the few attributes that matter."""

    def __init__(self, resource: Mapping[str, str], job_keys: Sequence[str]) -> None:
        self._resource = dict(sorted(resource.items())[:MAX_LABELS])
        self._job_keys = job_keys
        # Only these of a record's attributes are looked at.
        self.telling = RECORD_KEYS | frozenset((*job_keys, STACKTRACE))
        self._known: dict[tuple[tuple[str, str], ...], StreamKey] = {}

    def of(self, attributes: Mapping[str, str]) -> StreamKey:
        """`attributes`: those of a record whose names are in `telling`."""
        telling = tuple(sorted(item for item in attributes.items() if item[0] != STACKTRACE)) if attributes else ()
        key = self._known.get(telling)
        if key is None:
            labels = self._resource | dict(telling)
            subject = subject_of(labels, self._job_keys)
            path = next((labels[name] for name in PATH_KEYS if labels.get(name)), "-")
            key = StreamKey(subject.job, None, subject.node, subject.rank, path, tuple(sorted(labels.items())))
            self._known[telling] = key
        return key


class Gathering:
    """Records by stream, as they come, to be handed on stream by stream."""

    def __init__(self) -> None:
        self.decoded = Decoded()
        self._found: dict[StreamKey, tuple[list[int], list[str]]] = {}
        self._last: tuple[StreamKey, list[int], list[str]] | None = None

    def add(self, key: StreamKey, time_ns: int, body: str, stack: str = "") -> None:
        last = self._last
        if last is None or last[0] is not key:
            self._last = last = (key, *self._found.setdefault(key, ([], [])))
        last[1].append(time_ns)
        last[2].append(f"{body}\n{stack}" if stack and stack not in body else body)

    def reject(self, why: str) -> None:
        self.decoded.rejected += 1
        self.decoded.why = self.decoded.why or why

    def finish(self, limits: Limits) -> Decoded:
        for key, (times, texts) in self._found.items():
            self.decoded.add(key, [0] * len(times), times, texts, limits)
        return self.decoded


def decode_otlp_protobuf(data: bytes, limits: Limits, job_keys: Sequence[str], now_ns: int) -> Decoded:
    """Raises ProtocolError. A record whose time is out of range is rejected by itself."""
    try:
        request = ExportLogsServiceRequest.FromString(data)
    except DecodeError:
        raise ProtocolError("the body is not an OTLP ExportLogsServiceRequest") from None
    gathering = Gathering()
    for resource_logs in request.resource_logs:
        resource = {
            item.key: text[:MAX_LABEL_BYTES] for item in resource_logs.resource.attributes if (text := any_text(item.value))
        }
        streams = Streams(resource, job_keys)
        bare = streams.of({})
        for scope_logs in resource_logs.scope_logs:
            for record in scope_logs.log_records:
                time_ns = record.time_unix_nano or record.observed_time_unix_nano or now_ns
                if time_ns >= LATEST_NS:
                    gathering.reject("a record's time is out of range")
                    continue
                body = record.body.string_value or any_text(record.body)
                if not record.attributes:
                    gathering.add(bare, time_ns, body)
                    continue
                attributes = {
                    item.key: item.value.string_value or any_text(item.value)
                    for item in record.attributes
                    if item.key in streams.telling
                }
                gathering.add(streams.of(attributes), time_ns, body, attributes.get(STACKTRACE, ""))
    return gathering.finish(limits)


def any_text(value: Any) -> str:
    """An AnyValue as text: a string as it is, numbers and booleans as JSON writes them, lists and maps as JSON."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return str(value.string_value)
    if kind is None:
        return ""
    return json.dumps(plain(value), ensure_ascii=False)


def plain(value: Any) -> Any:
    """An AnyValue as plain data; protobuf's own parser limits how deep it nests."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: plain(item.value) for item in value.kvlist_value.values}
    if kind == "bytes_value":
        return value.bytes_value.hex()
    return getattr(value, kind)


def decode_otlp_json(data: bytes, limits: Limits, job_keys: Sequence[str], now_ns: int) -> Decoded:
    """The JSON form (lowerCamelCase, 64-bit numbers as strings). Raises ProtocolError."""
    document = parse_json(data, "the body")
    if not isinstance(document, dict):
        raise ProtocolError("the body must be an OTLP ExportLogsServiceRequest")
    gathering = Gathering()
    for resource_logs in objects(document, "resourceLogs"):
        resource_object = resource_logs.get("resource") or {}
        if not isinstance(resource_object, dict):
            raise ProtocolError("resource must be an object")
        resource = {name: text[:MAX_LABEL_BYTES] for name, text in attributes_of(resource_object, limits) if text}
        streams = Streams(resource, job_keys)
        for scope_logs in objects(resource_logs, "scopeLogs"):
            for record in objects(scope_logs, "logRecords"):
                time_ns = nanoseconds(record, "timeUnixNano") or nanoseconds(record, "observedTimeUnixNano") or now_ns
                if time_ns >= LATEST_NS:
                    gathering.reject("a record's time is out of range")
                    continue
                attributes = {name: text for name, text in attributes_of(record, limits) if name in streams.telling}
                body = json_text(record.get("body"), limits)
                gathering.add(streams.of(attributes), time_ns, body, attributes.get(STACKTRACE, ""))
    return gathering.finish(limits)


def objects(parent: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = parent.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ProtocolError(f"{name} must be a list of objects")
    return found


def nanoseconds(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name, 0)
    if isinstance(value, str) and value.isdecimal() and len(value) <= 20:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ProtocolError(f"{name} must be nanoseconds since the epoch")


def attributes_of(parent: Mapping[str, Any], limits: Limits) -> list[tuple[str, str]]:
    found = []
    for item in objects(parent, "attributes"):
        name = item.get("key")
        if not isinstance(name, str):
            raise ProtocolError("an attribute's key must be a string")
        found.append((name, json_text(item.get("value"), limits)))
    return found


def json_text(value: Any, limits: Limits) -> str:
    """An AnyValue of the JSON form as text."""
    if value is None:
        return ""
    if not isinstance(value, dict):
        raise ProtocolError('a value must be an object like {"stringValue": "..."}')
    text = value.get("stringValue")
    if isinstance(text, str):
        return text
    found = json_plain(value, limits.nesting)
    return "" if found is None else json.dumps(found, ensure_ascii=False)


def json_plain(value: Any, levels: int) -> Any:
    if levels == 0:
        raise ProtocolError("a value nests too deep")
    if not isinstance(value, dict):
        raise ProtocolError('a value must be an object like {"stringValue": "..."}')
    for name in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        if name in value:
            return value[name]
    if "intValue" in value:
        number = value["intValue"]
        return int(number) if isinstance(number, str) and number.removeprefix("-").isdecimal() and len(number) < 21 else number
    if isinstance(inner := value.get("arrayValue"), dict):
        return [json_plain(item, levels - 1) for item in objects(inner, "values")]
    if isinstance(inner := value.get("kvlistValue"), dict):
        return {str(item.get("key")): json_plain(item.get("value"), levels - 1) for item in objects(inner, "values")}
    return None


def partial_success(rejected: int, why: str, as_json: bool) -> bytes:
    """The answer to an export: empty where all was taken."""
    if as_json:
        document = {"partialSuccess": {"rejectedLogRecords": str(rejected), "errorMessage": why}} if rejected else {}
        return json.dumps(document).encode()
    if not rejected:
        return b""
    response = ExportLogsServiceResponse(
        partial_success=ExportLogsPartialSuccess(rejected_log_records=rejected, error_message=why)
    )
    return bytes(response.SerializeToString())
