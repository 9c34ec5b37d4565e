"""Lines in by every door, and back out exactly as stored."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import cramjam
import pytest
import zstandard
from fastapi.testclient import TestClient
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

LOGS = "/api/v1/logs"
LOKI = "/loki/api/v1/push"
OTLP = "/v1/logs"
JSON = {"Content-Type": "application/json"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}


def ndjson(*lines: str, **fields: Any) -> bytes:
    record = {"job": "train", "attempt": 1, "node": "n0", "rank": 0, "path": "/logs/1/rank0.log", "time": 1000.5} | fields
    return b"".join(
        json.dumps(record | {"number": number, "line": line}).encode() + b"\n" for number, line in enumerate(lines, 1)
    )


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def lines_of(client: TestClient, **query: Any) -> list[str]:
    return [item["line"] for item in client.get(LOGS, params=query).json()["items"]]


def loki(*lines: str, **labels: str) -> dict[str, Any]:
    values = [[str(1_700_000_000_000_000_000 + number), line] for number, line in enumerate(lines)]
    return {"streams": [{"stream": {"job_id": "42", "host": "n3", **labels}, "values": values}]}


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def push_request(labels: str, *lines: str) -> bytes:
    entries = b"".join(
        field(2, field(1, field(1, 1_700_000_000) + field(2, n)) + field(2, line.encode())) for n, line in enumerate(lines)
    )
    return bytes(cramjam.snappy.compress_raw(field(1, field(1, labels.encode()) + entries + field(3, 7))))


def otlp_json(*bodies: dict[str, Any], **fields: Any) -> dict[str, Any]:
    records = [{"timeUnixNano": "1700000000000000000", "body": body, "attributes": []} | fields for body in bodies]
    resource = {
        "attributes": [{"key": name, "value": {"stringValue": value}} for name, value in (("host.name", "n5"), ("job.id", "9"))]
    }
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": records}]}]}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"stringValue": "x"}
    for _ in range(levels):
        value = {"arrayValue": {"values": [value]}}
    return value


def test_a_batch_comes_back_line_by_line_with_where_it_came_from(client: TestClient) -> None:
    answer = client.post(LOGS, content=ndjson("first \u20ac", "  second\t", ""), headers={"Pitstop-Batch": "b1"})
    assert answer.json() == {"accepted": 3, "kept": 3, "dropped": 0, "duplicate": False}
    page = client.get(LOGS, params={"job": "train", "rank": 0}).json()
    assert [item["line"] for item in page["items"]] == ["first \u20ac", "  second\t", ""]
    assert (page["total"], page["next_cursor"]) == (3, None)
    assert page["items"][1] | {"labels": None} == {
        "job": "train", "attempt": 1, "node": "n0", "rank": 0, "path": "/logs/1/rank0.log", "number": 2,
        "time": "1970-01-01T00:16:40.500Z", "line": "  second\t", "trust": "job", "labels": None,
    }  # fmt: skip


def test_a_batch_sent_again_is_stored_once_and_answered_alike(client: TestClient) -> None:
    for duplicate in (False, True):
        answer = client.post(LOGS, content=ndjson("one", "two"), headers={"Pitstop-Batch": "b1"})
        assert answer.json() == {"accepted": 2, "kept": 2, "dropped": 0, "duplicate": duplicate}
    assert lines_of(client) == ["one", "two"]


def test_loki_json_plain_and_gzip_reads_back_with_its_labels(client: TestClient) -> None:
    assert client.post(LOKI, json=loki("a", "b")).status_code == 204
    packed = gzip.compress(json.dumps(loki("c")).encode())
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    assert client.post(LOKI, content=packed, headers=headers).status_code == 204
    items = client.get(LOGS, params={"job": "42", "node": "n3"}).json()["items"]
    assert [item["line"] for item in items] == ["a", "b", "c"]
    assert items[0]["labels"] == {"job_id": "42", "host": "n3"}
    assert items[0]["time"] == "2023-11-14T22:13:20.000Z"


def test_loki_protobuf_reads_back(client: TestClient) -> None:
    body = push_request('{pitstop_job="7", rank="3", filename="/var/log/a \\"b\\".log"}', "x", "y\nz")
    answer = client.post(LOKI, content=body, headers={"Content-Type": "application/x-protobuf"})
    assert answer.status_code == 204
    items = client.get(LOGS, params={"job": "7", "rank": 3}).json()["items"]
    assert [item["line"] for item in items] == ["x", "y", "z"]
    assert items[0]["path"] == '/var/log/a "b".log'


def test_a_loki_push_sent_again_is_stored_once(client: TestClient) -> None:
    for _ in range(2):
        assert client.post(LOKI, json=loki("a", "b")).status_code == 204
    assert lines_of(client) == ["a", "b"]


def test_records_batched_differently_when_sent_again_are_stored_once(client: TestClient) -> None:
    body = loki("a", "b", "b")
    assert client.post(LOKI, json=body).status_code == 204
    body["streams"][0]["values"].append(["1700000000000000009", "c"])
    assert client.post(LOKI, json=body).status_code == 204
    assert lines_of(client) == ["a", "b", "b", "c"]
    assert client.get(LOGS).json()["total"] == 4


def test_equal_lines_of_one_batch_are_all_kept(client: TestClient) -> None:
    body = loki("x")
    body["streams"][0]["values"] *= 3
    client.post(LOKI, json=body)
    assert lines_of(client) == ["x", "x", "x"]


def test_otlp_json_maps_resource_and_record_attributes(client: TestClient) -> None:
    attributes = [{"key": "rank", "value": {"intValue": "2"}}, {"key": "trace", "value": {"stringValue": "t1"}}]
    body = otlp_json(
        {"stringValue": "hello"}, {"kvlistValue": {"values": [{"key": "a", "value": {"intValue": "1"}}]}}, attributes=attributes
    )
    answer = client.post(OTLP, json=body)
    assert (answer.status_code, answer.json()) == (200, {})
    items = client.get(LOGS, params={"job": "9", "node": "n5", "rank": 2}).json()["items"]
    assert [item["line"] for item in items] == ["hello", '{"a": 1}']


def test_otlp_protobuf_keeps_the_stack_trace_of_an_exception(client: TestClient) -> None:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=1_700_000_000_000_000_000)
    record.body.string_value = "step failed"
    record.attributes.add(key="exception.stacktrace").value.string_value = "Traceback:\nValueError: x"
    answer = client.post(
        OTLP, content=gzip.compress(request.SerializeToString()), headers=PROTOBUF | {"Content-Encoding": "gzip"}
    )
    assert (answer.status_code, answer.content) == (200, b"")
    assert lines_of(client) == ["step failed", "Traceback:", "ValueError: x"]


def test_an_otlp_record_that_cannot_be_taken_is_counted_and_the_others_are_kept(client: TestClient) -> None:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    records.add(time_unix_nano=2**64 - 1).body.string_value = "too late"
    records.add(observed_time_unix_nano=5).body.string_value = "in time"
    answer = client.post(OTLP, content=request.SerializeToString(), headers=PROTOBUF)
    partial = ExportLogsServiceResponse.FromString(answer.content).partial_success
    assert (partial.rejected_log_records, partial.error_message) == (1, "a record's time is out of range")
    assert lines_of(client) == ["in time"]


def test_secrets_are_taken_out_before_storing(client: TestClient) -> None:
    client.post(LOGS, content=ndjson("export DB_PASSWORD=correcthorse"))
    assert lines_of(client) == ["export DB_PASSWORD=[redacted:named-secret]"]


def test_pages_join_without_a_gap_and_without_a_repeat(client: TestClient) -> None:
    for batch in range(3):
        client.post(LOGS, content=ndjson(*(f"{batch}-{number}" for number in range(7)), rank=batch))
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = client.get(LOGS, params={"limit": 4} | ({"cursor": cursor} if cursor else {})).json()
        assert page["total"] == 21
        seen += [item["line"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [f"{batch}-{number}" for batch in range(3) for number in range(7)]


def test_lines_are_found_by_text_and_time(client: TestClient) -> None:
    client.post(LOGS, content=ndjson("apple pie", "plain", time=100.0) + ndjson("apple juice", time=200.0))
    assert lines_of(client, contains="apple") == ["apple pie", "apple juice"]
    assert lines_of(client, contains="apple", **{"from": "150"}) == ["apple juice"]
    assert lines_of(client, to="1970-01-01T00:02:30Z") == ["apple pie", "plain"]


@pytest.mark.parametrize(
    ("door", "body", "headers", "status"),
    [
        (LOGS, b"{", {}, 400),
        (LOGS, b"[1]", {}, 400),
        (LOGS, ndjson("good") + b'{"line": 3}', {}, 400),
        (LOGS, ndjson("good", time=1e300), {}, 400),
        (LOGS, ndjson("good", rank=-1), {}, 400),
        (LOGS, ndjson("good", job="a" * 300), {}, 400),
        (LOGS, b"\xff\xfe", {}, 400),
        (LOGS, b"[" * 100_000, {}, 400),
        (LOGS, ndjson("good"), {"Pitstop-Batch": "with blank"}, 400),
        (LOGS, b"not gzip", {"Content-Encoding": "gzip"}, 400),
        (LOGS, gzip.compress(ndjson("good"), mtime=0)[:-9], {"Content-Encoding": "gzip"}, 400),
        (LOGS, gzip.compress(ndjson("good"), mtime=0) + b"rest", {"Content-Encoding": "gzip"}, 400),
        (LOGS, zlib.compress(ndjson("good"))[:-5], {"Content-Encoding": "deflate"}, 400),
        (LOGS, zlib.compress(ndjson("good")) * 2, {"Content-Encoding": "deflate"}, 400),
        (LOGS, zstd(ndjson("good"))[:-3], {"Content-Encoding": "zstd"}, 400),
        (LOGS, zstd(ndjson("good")) + zstd(ndjson("more"))[:-3], {"Content-Encoding": "zstd"}, 400),
        (LOGS, zstd(b" " * 70_000_000), {"Content-Encoding": "zstd"}, 413),
        (LOGS, ndjson("good"), {"Content-Encoding": "br"}, 400),
        (LOGS, b'{"line": "x", "time": 1' + b"0" * 400 + b"}", {}, 400),
        (LOGS, b'{"line": "x", "time": NaN}', {}, 400),
        (LOGS, b'{"line": "x", "number": 1' + b"0" * 5000 + b"}", {}, 400),
        (LOGS, gzip.compress(b" " * 70_000_000, mtime=0), {"Content-Encoding": "gzip"}, 413),
        (LOKI, b"{}", JSON, 400),
        (LOKI, b'{"streams": [{"stream": {"a": 1}, "values": []}]}', JSON, 400),
        (LOKI, b'{"streams": [{"stream": {}, "values": [["soon", "x"]]}]}', JSON, 400),
        (LOKI, b"garbage", PROTOBUF, 400),
        (LOKI, b"\xff\xff\xff\xff\x0f", PROTOBUF, 413),
        (LOKI, bytes(cramjam.snappy.compress_raw(b"\x0a\xff")), PROTOBUF, 400),
        (LOKI, push_request("no braces", "x"), PROTOBUF, 400),
        (OTLP, b"[]", JSON, 400),
        (OTLP, b'{"resourceLogs": [1]}', JSON, 400),
        (OTLP, json.dumps(otlp_json({"stringValue": "x"}, timeUnixNano="soon")).encode(), JSON, 400),
        (OTLP, json.dumps(otlp_json("text")).encode(), JSON, 400),
        (OTLP, b'{"resourceLogs":' * 10_000, JSON, 400),
        (OTLP, json.dumps(otlp_json(nested(70))).encode(), JSON, 400),
        (OTLP, b"\xff\xff", PROTOBUF, 400),
        ("/api/v1/diagnose", b"  ", {}, 400),
    ],
)
def test_bad_input_gets_one_clear_error_and_stores_nothing(
    client: TestClient, door: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    answer = client.post(door, content=body, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] and "\n" not in answer.json()["detail"]
    assert client.get(LOGS).json()["total"] == 0


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_of_several_members_is_taken_to_its_last(client: TestClient, encoding: str) -> None:
    pack = zstd if encoding == "zstd" else gzip.compress
    body = pack(ndjson("first")) + 50_000 * pack(b"") + pack(ndjson("second"))
    assert client.post(LOGS, content=body, headers={"Content-Encoding": encoding}).json()["accepted"] == 2
    assert lines_of(client) == ["first", "second"]


def test_names_that_no_database_takes_are_made_storable(client: TestClient) -> None:
    body = {"streams": [{"stream": {"job_id": "a\0b\ud800" + "x" * 300, "filename": "\ud800"}, "values": [["1", "line \ud800"]]}]}
    assert client.post(LOKI, content=json.dumps(body).encode(), headers=JSON).status_code == 204
    (item,) = client.get(LOGS).json()["items"]
    assert item["job"].startswith("a\ufffdb?x") and len(item["job"]) == 255
    assert (item["path"], item["line"]) == ("?", "line ?")
    assert client.post(LOGS, content=ndjson("after")).status_code == 200


def test_a_line_over_the_limit_is_cut_and_says_so(client: TestClient) -> None:
    client.post(LOGS, content=ndjson("x" * 300_000, "after"))
    first, second = lines_of(client)
    assert first.endswith("[pitstop: 37856 more bytes cut]") and len(first) < 263_000
    assert second == "after"


def test_a_text_is_diagnosed_and_nothing_is_stored(client: TestClient) -> None:
    text = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    x = {}['a']\nKeyError: 'a'\n"
    answer = client.post("/api/v1/diagnose", content=text)
    assert answer.status_code == 200
    document = answer.json()
    assert document["version"] == 1 and document["category"] == "script"
    assert any("KeyError" in item["text"] for item in document["evidence"])
    assert client.get(LOGS).json()["total"] == 0


def test_a_failed_attempt_is_diagnosed_from_its_kept_lines_and_exit_statuses(client: TestClient) -> None:
    from service.incidents import FailureReport, open_or_update_incident

    trace = [
        "step 7 done",
        "Traceback (most recent call last):",
        '  File "t.py", line 3, in f',
        "    x = 1 / 0",
        "ZeroDivisionError: division by zero",
    ]
    client.post(LOGS, content=ndjson(*trace, rank=1, path="/logs/1/rank1.log"))
    client.post(LOGS, content=ndjson("step 7 done", rank=0))
    client.post(LOGS, content=ndjson("RuntimeError: of another attempt", attempt=2, path="/logs/2/rank0.log"))
    service = client.app.state.pitstop  # type: ignore[attr-defined]
    report = FailureReport("train", 1, 1, "k", ({"rank": 1, "node": "n0", "exit_code": 1},))
    with service.store.writing() as session:
        open_or_update_incident(session, report, service.clock())
    diagnosis = service.recoveries.diagnose(1)
    root = next(item for item in diagnosis.evidence if "ZeroDivisionError" in item.text)
    assert (root.line, root.rank, root.path) == (5, 1, "/logs/1/rank1.log")
    assert not any("another attempt" in item.text for item in diagnosis.evidence)


def test_a_reported_failure_is_never_called_none(client: TestClient) -> None:
    from service.incidents import FailureReport, open_or_update_incident

    client.post(LOGS, content=ndjson("all is well"))
    service = client.app.state.pitstop  # type: ignore[attr-defined]
    with service.store.writing() as session:
        open_or_update_incident(session, FailureReport("train", 1, 1, "k"), service.clock())
    diagnosis = service.recoveries.diagnose(1)
    assert diagnosis.reason == "unknown" and diagnosis.confidence < 0.5


def test_the_kernel_log_of_the_node_is_read_with_the_jobs_own_lines(client: TestClient) -> None:
    """A node's own lines count for what runs on it, in its time, under any of its names, with trust where its agent vouches."""
    from service.access import Role, create_token

    service = client.app.state.pitstop  # type: ignore[attr-defined]
    with service.store.writing() as session:
        secret = create_token(session, "agent", Role.NODE, binding=("n6", "n7"), now=service.clock(), by="test")
    node = {"Authorization": f"Bearer {secret}"}
    lease = {"boot_id": "b", "agent_id": "a", "aliases": ["n7.cluster.example"], "clock": 1.0}
    assert client.post("/api/v1/nodes/n7/lease", json=lease, headers=node).status_code == 200
    now = service.clock()
    xid = "kernel: NVRM: Xid (PCI:0000:b3:00.0): 79, pid=1234, name=python, GPU has fallen off the bus."
    kernel = {"node": "n7", "path": "/dev/kmsg", "number": 9, "trust": "node", "line": xid}
    for stamp, headers in ((now - 5, node), (now - 9000, node)):
        body = json.dumps(kernel | {"time": stamp}).encode()
        assert client.post(LOGS, content=body, headers=headers).status_code == 200
    client.post(LOGS, content=json.dumps(kernel | {"node": "n8", "time": now}).encode())
    client.post(
        LOGS, content=ndjson("RuntimeError: CUDA error: unspecified launch failure", rank=1, time=now, node="n7.cluster.example")
    )
    client.post("/api/v1/jobs", json={"job": "train", "ranks": 2})
    ranks = [{"rank": rank, "node": "n7.cluster.example"} for rank in range(2)]
    client.post("/api/v1/jobs/train/attempts", json={"attempt": 1, "generation": 1, "ranks": ranks, "started_at": now - 60})
    from service.incidents import FailureReport, open_or_update_incident

    with service.store.writing() as session:
        open_or_update_incident(session, FailureReport("train", 1, 1, "k", ({"rank": 1, "exit_code": 1},)), now)
    diagnosis = service.recoveries.diagnose(1)
    assert diagnosis.reason == "gpu_fallen_off_bus"
    roots = [item for item in diagnosis.evidence if item.text == xid]
    assert [(item.node, item.trust, item.line) for item in roots] == [("n7", "node", 9)]
