"""What is shipped for a cluster: checked by the programs that read it, and run with them."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
import yaml
from fastapi.testclient import TestClient

from cli.stories.stage import free_port
from service.notifications.routes import load_routes
from service.settings import Settings
from tests.service.service_process import ServiceProcess

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"

DOWN = f"""
rule_files: [{RULES}]
evaluation_interval: 15s
tests:
- interval: 15s
  input_series: [{{series: 'up{{job="pitstop"}}', values: '1x4 0x20'}}]
  alert_rule_test:
  - {{eval_time: 1m, alertname: PitstopDown, exp_alerts: []}}
  - eval_time: 4m
    alertname: PitstopDown
    exp_alerts:
    - exp_labels: {{severity: critical, job: pitstop}}
      exp_annotations: {{summary: "Pitstop does not answer. Training goes on; nothing is diagnosed or recovered."}}
- interval: 15s
  input_series: []
  alert_rule_test:
  - eval_time: 4m
    alertname: PitstopDown
    exp_alerts:
    - exp_labels: {{severity: critical, job: pitstop}}
      exp_annotations: {{summary: "Pitstop does not answer. Training goes on; nothing is diagnosed or recovered."}}
"""


def need(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")


def run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_and_alertmanager_take_the_shipped_configuration() -> None:
    need("promtool", "amtool")
    run("promtool", "check", "rules", RULES)
    run("promtool", "check", "config", "--syntax-only", DEPLOY / "prometheus" / "prometheus.yml")
    run("amtool", "check-config", DEPLOY / "alertmanager" / "alertmanager.yml")


def test_the_dead_man_alert_fires_where_pitstop_is_down_and_where_nobody_ever_saw_it(tmp_path: Path) -> None:
    need("promtool")
    (tmp_path / "down.yml").write_text(DOWN)
    run("promtool", "test", "rules", tmp_path / "down.yml")


def test_word_that_pitstop_cannot_speak_does_not_go_through_pitstop() -> None:
    need("amtool")
    file = DEPLOY / "alertmanager" / "alertmanager.yml"
    for alert, receiver in (("PitstopDown", "outside"), ("PitstopWatchdog", "outside"), ("GpuLost", "pitstop")):
        command = ["amtool", "config", "routes", "test", f"--config.file={file}", f"alertname={alert}"]
        assert subprocess.run(command, capture_output=True, text=True, timeout=120).stdout.strip() == receiver


def test_every_container_gets_only_the_secrets_that_it_needs() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert {name: set(part["secrets"]) for name, part in compose["services"].items()} == {
        "postgres": {"postgres_password"},
        "pitstop": {"postgres_password", "admin_token"},
        "prometheus": {"viewer_token"},
        "alertmanager": {"ingest_token"},
        "grafana": {"grafana_password"},
    }
    assert all(port.startswith("127.0.0.1:") for part in compose["services"].values() for port in part.get("ports", ()))


def test_secrets_are_made_once_and_kept_from_others_on_the_machine(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    script = shutil.copy(DEPLOY / "up.sh", tmp_path / "deploy" / "up.sh")
    run("sh", script, "secrets")
    made = {file.name: file.read_text() for file in (tmp_path / "deploy" / "secrets").iterdir()}
    run("sh", script, "secrets")
    assert {file.name: file.read_text() for file in (tmp_path / "deploy" / "secrets").iterdir()} == made
    assert re.fullmatch("[0-9a-f]{64}", made["admin_token"]) and made["admin_token"] != made["postgres_password"]
    assert stat.S_IMODE((tmp_path / "deploy" / "secrets").stat().st_mode) == 0o700


DOCKER = """#!/bin/sh
# `docker compose exec -T pitstop COMMAND...` runs COMMAND here; everything else goes well.
[ "$2" = exec ] || exit 0
shift 4
exec "$@"
"""


def test_the_tokens_of_prometheus_and_alertmanager_are_made_and_open_what_they_are_for(
    tmp_path: Path, settings: Settings, client: TestClient
) -> None:
    script = tmp_path / "deploy" / "up.sh"
    script.parent.mkdir()
    shutil.copy(DEPLOY / "up.sh", script)
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", script],
        env=os.environ | {"PATH": path, "PITSTOP_DATA_DIR": str(settings.data_dir)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    viewer, ingest = ((script.parent / "secrets" / f"{role}_token").read_text().strip() for role in ("viewer", "ingest"))
    assert client.get("/metrics", headers={"Authorization": f"Bearer {viewer}"}).status_code == 200
    told = {"version": "4", "status": "firing", "alerts": [], "groupKey": "{}", "receiver": "pitstop"}
    answer = client.post("/api/v1/alerts/alertmanager", json=told, headers={"Authorization": f"Bearer {ingest}"})
    assert answer.status_code == 200, answer.text


def test_compose_takes_the_file(tmp_path: Path) -> None:
    need("docker-compose")
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    shutil.copy(DEPLOY / "up.sh", tmp_path / "deploy" / "up.sh")
    run("sh", tmp_path / "deploy" / "up.sh", "secrets")
    run("docker-compose", "-f", tmp_path / "docker-compose.yml", "config", "--quiet")


def test_the_dashboard_of_grafana_asks_only_for_what_exists() -> None:
    shipped = RULES.read_text() + (ROOT / "service" / "metrics.py").read_text()
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "pitstop.json").read_text())
    for panel in dashboard["panels"]:
        for name in re.findall(r"pitstop[_:][a-z_:0-9]+", panel["targets"][0]["expr"]):
            assert name in shipped, name


@pytest.mark.acceptance
def test_an_alert_of_the_shipped_rules_becomes_an_incident(tmp_path: Path) -> None:
    need("prometheus", "prometheus-alertmanager")
    alertmanager, port = free_port(), free_port()
    # The service of this machine is reached without tokens; addresses and waiting times are the only other changes.
    with ServiceProcess(tmp_path / "data") as service:
        changes = {
            "pitstop:8787": f"127.0.0.1:{service.port}",
            "alertmanager:9093": f"127.0.0.1:{alertmanager}",
            "15s": "1s",
            "for: 1m": "for: 0s",
            "group_wait: 5s": "group_wait: 0s",
            "        http_config: {authorization: {credentials_file: /run/secrets/ingest_token}}\n": "",
            "    authorization: {credentials_file: /run/secrets/viewer_token}\n": "",
        }
        for file in (DEPLOY / "prometheus" / "prometheus.yml", RULES, DEPLOY / "alertmanager" / "alertmanager.yml"):
            text = file.read_text()
            for old, new in changes.items():
                text = text.replace(old, new)
            (tmp_path / file.name).write_text(text)
        commands = (
            ["prometheus-alertmanager", f"--config.file={tmp_path / 'alertmanager.yml'}", f"--storage.path={tmp_path / 'am'}",
             f"--web.listen-address=127.0.0.1:{alertmanager}", "--cluster.listen-address="],
            ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
             f"--web.listen-address=127.0.0.1:{port}", "--rules.alert.resend-delay=1s"],
        )  # fmt: skip
        with (tmp_path / "log").open("wb") as log:
            running = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
            try:
                deadline = time.monotonic() + 200
                found: list[str] = []
                while not any("PitstopRefuses" in summary for summary in found):
                    assert time.monotonic() < deadline, (found, (tmp_path / "log").read_text()[-2000:])
                    httpx2.post(f"{service.url}/api/v1/alerts/alertmanager", content=b"no alert", timeout=120)
                    items = httpx2.get(f"{service.url}/api/v1/incidents", timeout=120).json()["items"]
                    found = [incident["summary"] for incident in items]
                    time.sleep(0.5)
                assert not any("Watchdog" in summary or "PitstopDown" in summary for summary in found)
            finally:
                for process in running:
                    process.terminate()
                for process in running:
                    process.wait(timeout=120)


def test_the_documented_example_of_who_is_told_can_be_used(tmp_path: Path) -> None:
    found = re.search(r"```yaml\n(.*?)```", (ROOT / "docs" / "deployment.md").read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "url").write_text("json://127.0.0.1:1/oncall")
    (tmp_path / "notify.yaml").write_text(found.group(1).replace("/run/secrets/oncall_url", str(tmp_path / "url")))
    routes = load_routes(tmp_path / "notify.yaml")
    assert routes is not None
    assert routes.channels_for({"severity": "SEV1", "project": "vision", "audience": "owner"}) == ("oncall", "vision")
