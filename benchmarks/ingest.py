"""Lines through the doors of the real service, beside the floor of the same run: decompress, parse and match every line, with no
HTTP and no store; and beside the same floor where shapes tell most verdicts, as they do at the doors. In CPU seconds of all
processes of the service; 64 streams, 1,000 lines a batch, fsync on."""

from __future__ import annotations

import gzip
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import psutil
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from rules.artefact import load_compiled
from rules.line_verdicts import VerdictFinder
from tests.service.service_process import ServiceProcess

STREAMS, LINES, BATCHES = 64, 1000, 120
CLIENTS = 8
Make = Callable[[list[str], int], bytes]
Parse = Callable[[bytes], list[str]]

ROUTINE = (
    "[default{rank}]: [2026-11-28 09:57:{second:02d}.123456] iteration {step:8d}/  500000 | consumed samples: {samples:12d} | "
    "elapsed time per iteration (ms): 3{n:03d}.1 | learning rate: 1.5E-04 | global batch size:  1024 | lm loss: 2.{n:06d}E+00 | "
    "loss scale: 1.0 | grad norm: 0.{n:03d} | number of skipped iterations:   0 | number of nan iterations:   0 |"
)


def lines(routine: float, seed: int) -> list[str]:
    """`routine` of the lines fall to a routine rule; the others are kept."""
    chance = random.Random(seed)
    made = []
    for number in range(LINES):
        rank = number % STREAMS
        if chance.random() < routine:
            step = seed * 100 + number // STREAMS
            made.append(ROUTINE.format(rank=rank, second=number % 60, step=step, samples=step * 1024, n=chance.randrange(1000)))
        else:
            made.append(
                f"worker {rank}: odd {chance.getrandbits(64):x} after {chance.getrandbits(64):x} in batch {seed}, going on"
            )
    return made


def loki(texts: list[str], batch: int) -> bytes:
    stamp = 1_700_000_000_000_000_000 + batch * LINES
    streams = [
        {
            "stream": {"job_id": "bench", "rank": str(rank)},
            "values": [[str(stamp + place), text] for place, text in enumerate(texts) if place % STREAMS == rank],
        }
        for rank in range(STREAMS)
    ]
    return gzip.compress(json.dumps({"streams": streams}).encode(), 1)


def parse_loki(body: bytes) -> list[str]:
    document = json.loads(gzip.decompress(body))
    return [value[1] for stream in document["streams"] for value in stream["values"]]


def otlp(texts: list[str], batch: int) -> bytes:
    request = ExportLogsServiceRequest()
    for rank in range(STREAMS):
        resource = request.resource_logs.add()
        resource.resource.attributes.add(key="job.id").value.string_value = "bench"
        resource.resource.attributes.add(key="rank").value.string_value = str(rank)
        records = resource.scope_logs.add().log_records
        for place, text in enumerate(texts):
            if place % STREAMS == rank:
                records.add(time_unix_nano=1_700_000_000_000_000_000 + batch * LINES + place).body.string_value = text
    return gzip.compress(request.SerializeToString(), 1)


def parse_otlp(body: bytes) -> list[str]:
    request = ExportLogsServiceRequest.FromString(gzip.decompress(body))
    return [
        record.body.string_value
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def floor(bodies: list[bytes], parse: Parse, match: Callable[[bytes], object]) -> float:
    """CPU seconds to decompress, parse and match."""
    began = time.process_time()
    for body in bodies:
        match("\n".join(parse(body)).encode() + b"\n")
    return time.process_time() - began


def family(process: psutil.Process) -> Iterator[psutil.Process]:
    yield process
    yield from process.children(recursive=True)


def through(bodies: list[bytes], path: str, content_type: str) -> tuple[float, float, list[float]]:
    """(CPU seconds of the service, wall-clock seconds, answer times in seconds)."""
    with tempfile.TemporaryDirectory() as folder, ServiceProcess(Path(folder) / "data") as service:
        headers = {"Content-Type": content_type, "Content-Encoding": "gzip"}
        with httpx2.Client(base_url=service.url, timeout=60) as client:
            client.post(path, content=bodies[0], headers=headers).raise_for_status()
        parts = list(family(psutil.Process(service.process.pid if service.process else 0)))
        left = list(bodies[1:])
        took: list[float] = []
        lock = threading.Lock()

        def send() -> None:
            with httpx2.Client(base_url=service.url, timeout=60) as client:
                while True:
                    with lock:
                        if not left:
                            return
                        body = left.pop()
                    began = time.perf_counter()
                    while client.post(path, content=body, headers=headers).status_code == 503:
                        time.sleep(0.05)
                    took.append(time.perf_counter() - began)

        before = sum(part.cpu_times().user + part.cpu_times().system for part in parts)
        began = time.perf_counter()
        senders = [threading.Thread(target=send) for _ in range(CLIENTS)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        wall = time.perf_counter() - began
        after = sum(part.cpu_times().user + part.cpu_times().system for part in parts)
    return after - before, wall, took


def run() -> str:
    """The table for benchmarks/results/ingest.md."""
    rows = []
    compiled = load_compiled()
    for name, make, parse, path, kind in (
        ("Loki push, JSON, gzip", loki, parse_loki, "/loki/api/v1/push", "application/json"),
        ("OTLP, protobuf, gzip", otlp, parse_otlp, "/v1/logs", "application/x-protobuf"),
    ):
        for routine in (0.995, 0.8):
            bodies = [make(lines(routine, batch), batch) for batch in range(BATCHES)]
            size = sum(len(text) + 1 for batch in range(1, BATCHES) for text in lines(routine, batch))
            matcher = compiled.matcher()
            least = floor(bodies[1:], parse, matcher.patterns.find)
            shaped = floor(bodies[1:], parse, VerdictFinder(matcher, compiled.shapes).find)
            cpu, wall, took = through(bodies, path, kind)
            p99 = statistics.quantiles(took, n=100)[98]
            rates = [f"{size / seconds / 1e6:.1f}" for seconds in (least, shaped, cpu)]
            shares = [f"{seconds / cpu:.2f}" for seconds in (least, shaped)]
            answers = f"{1000 * statistics.median(took):.0f} / {1000 * p99:.0f}"
            rows.append("| " + " | ".join([name, f"{routine:.1%}", *rates, *shares, f"{size / wall / 1e6:.1f}", answers]) + " |")
    head = (
        f"{__doc__}\n\n{BATCHES - 1} batches from {CLIENTS} clients on the same machine.\n\n"
        "| door | routine | floor, MB/s of CPU | floor by shape | service | of the floor | of the floor by shape "
        "| MB/s of wall clock | answer p50 / p99, ms |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *rows])
