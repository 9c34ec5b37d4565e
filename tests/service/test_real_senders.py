"""Other people's programs as they send: every record arrives once, with its attributes in their places."""

from __future__ import annotations

import logging
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cli.stories.stage import free_port
from tests.service.service_process import ServiceProcess

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path_factory.mktemp("service") / "data") as service:
        yield service


def items(service: ServiceProcess, path: str = "/api/v1/logs", **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx2.get(f"{service.url}{path}", params=query, timeout=120).json()["items"]
    return found


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.2)


def test_the_opentelemetry_sdk_exports_its_records(service: ServiceProcess) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk._logs")
    export = pytest.importorskip("opentelemetry.sdk._logs.export")
    exporter = pytest.importorskip("opentelemetry.exporter.otlp.proto.http._log_exporter")
    from opentelemetry._logs import LogRecord, SeverityNumber
    from opentelemetry.sdk.resources import Resource

    resource = Resource.create({"service.name": "trainer", "host.name": "n4", "job.id": "otel-1"})
    provider = sdk.LoggerProvider(resource=resource)
    target = exporter.OTLPLogExporter(f"{service.url}/v1/logs", compression=exporter.Compression.Gzip)
    provider.add_log_record_processor(export.BatchLogRecordProcessor(target))
    logger = provider.get_logger("train")
    for number in range(700):
        logger.emit(
            LogRecord(
                timestamp=time.time_ns(),
                severity_number=SeverityNumber.INFO,
                body=f"odd record {number}",
                attributes={"rank": number % 2, "code.lineno": 7},
            )
        )
    try:
        raise ValueError("it broke")
    except ValueError as error:
        logger.emit(LogRecord(timestamp=time.time_ns(), body="step failed", attributes={"rank": 1}, exception=error))
    assert provider.force_flush()
    provider.shutdown()
    found = items(service, job="otel-1", limit=5000)
    assert sorted(item["line"] for item in found if item["line"].startswith("odd")) == sorted(
        f"odd record {n}" for n in range(700)
    )
    assert {(item["node"], item["rank"]) for item in found} == {("n4", 0), ("n4", 1)}
    assert any(item["line"] == "ValueError: it broke" and item["rank"] == 1 for item in found)


def test_python_logging_loki_pushes_its_records(service: ServiceProcess) -> None:
    loki = pytest.importorskip("logging_loki")
    tags = {"application": "trainer", "job_id": "loki-1", "host": "n5"}
    handler = loki.LokiHandler(url=f"{service.url}/loki/api/v1/push", tags=tags, version="1")
    logger = logging.Logger("train")
    logger.addHandler(handler)
    for number in range(20):
        logger.warning("odd record %d", number, extra={"tags": {"rank": str(number % 2)}})
    found = items(service, job="loki-1")
    assert [item["line"] for item in found] == [f"odd record {number}" for number in range(20)]
    assert {(item["node"], item["rank"], item["labels"]["severity"]) for item in found} == {
        ("n5", 0, "warning"),
        ("n5", 1, "warning"),
    }


ALERTMANAGER = """
route: {{receiver: pitstop, group_wait: 0s, group_interval: 1s, repeat_interval: 1m}}
receivers: [{{name: pitstop, webhook_configs: [{{url: "{url}/api/v1/alerts/alertmanager", send_resolved: true}}]}}]
"""
PROMETHEUS = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]}}
"""
RULES = """
groups:
- name: train
  rules:
  - alert: TrainStepStalled
    expr: vector(1) > 0
    labels: {job_id: prom-1, rank: "3", severity: critical}
    annotations: {summary: stalled}
"""


def test_prometheus_and_alertmanager_bring_an_alert(service: ServiceProcess, tmp_path: Path) -> None:
    missing = [program for program in ("prometheus", "prometheus-alertmanager") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    alertmanager_port, port = free_port(), free_port()
    (tmp_path / "alertmanager.yml").write_text(ALERTMANAGER.format(url=service.url))
    (tmp_path / "rules.yml").write_text(RULES)
    (tmp_path / "prometheus.yml").write_text(PROMETHEUS.format(rules=tmp_path / "rules.yml", port=alertmanager_port))
    commands = (
        ["prometheus-alertmanager", f"--config.file={tmp_path / 'alertmanager.yml'}", f"--storage.path={tmp_path / 'am'}",
         f"--web.listen-address=127.0.0.1:{alertmanager_port}", "--cluster.listen-address="],
        ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
         f"--web.listen-address=127.0.0.1:{port}", "--rules.alert.resend-delay=1s"],
    )  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        running = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
        try:
            until(lambda: bool(items(service, "/api/v1/incidents", job="prom-1")), 200)
            (incident,) = items(service, "/api/v1/incidents", job="prom-1")
            assert (incident["rank"], incident["state"], incident["summary"]) == ("3", "detected", "TrainStepStalled: stalled")
            running[1].terminate()
            running[1].wait(timeout=120)
            # Prometheus is gone: Alertmanager resolves by itself what is no longer sent; here by hand, to be quick.
            alert = {"labels": {"alertname": "TrainStepStalled", "job_id": "prom-1", "rank": "3", "severity": "critical"}}
            ended = alert | {"endsAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
            httpx2.post(f"http://127.0.0.1:{alertmanager_port}/api/v2/alerts", json=[ended], timeout=120).raise_for_status()
            until(lambda: items(service, "/api/v1/incidents", job="prom-1")[0]["state"] == "resolved", 200)
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait(timeout=120)
