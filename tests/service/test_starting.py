"""`pitstop serve` under settings that cannot be used: one line that says which, exit status 2, nothing that seems to serve."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import run
from service.settings import load_settings, misspelt


@pytest.fixture(autouse=True)
def mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PITSTOP_DATA_DIR", "/proc/self/status", "choose another with --data-dir"),
        ("PITSTOP_DATABASE", "everything.sqlite", "not a URL: use sqlite:///PATH"),
        ("PITSTOP_DATABASE", "mysql://localhost/pitstop", "mysql is not supported"),
        ("PITSTOP_DATABASE", "postgresql://127.0.0.1:1/pitstop", "the database cannot be used"),
        ("PITSTOP_BOOTSTRAP_TOKEN_FILE", "/no/such/file", "PITSTOP_BOOTSTRAP_TOKEN_FILE: cannot read"),
        ("PITSTOP_RULES_DIR", "/no/such/folder", "/no/such/folder: cannot read the packs"),
        ("PITSTOP_NOTIFY_FILE", "/no/such/file", "PITSTOP_NOTIFY_FILE"),
        ("PITSTOP_PORT", "eighty", "PITSTOP_PORT"),
        ("PITSTOP_LOG_DAYS", "-1", "PITSTOP_LOG_DAYS"),
    ],
)
def test_a_setting_that_cannot_be_used_is_told_in_one_line(
    variable: str, value: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PITSTOP_PORT", "0")
    monkeypatch.setenv("PITSTOP_DATA_DIR", str(tmp_path))
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as ended:
        run(["serve"])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and message in told and told.count("\n") == 1


def test_what_kubernetes_says_of_a_service_named_pitstop_and_empty_variables_are_no_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PITSTOP_PORT", "tcp://10.0.171.239:8787")
    monkeypatch.setenv("PITSTOP_PUBLIC_URL", "")
    settings = load_settings(data_dir=tmp_path)
    assert (settings.port, settings.public_url) == (8787, None)


def test_a_variable_that_is_nearly_a_setting_is_taken_for_a_slip() -> None:
    given = (
        "PITSTOP_LOG_DAY",
        "PITSTOP_PRT",
        "PITSTOP_PORT",
        "PITSTOP_SERVICE",
        "PITSTOP_TOKEN_FILE",
        "PITSTOP_JOB",
        "PITSTOP_NODE",
    )
    assert misspelt((*given, "PITSTOP_SERVICE_HOST", "PITSTOP_SERVICE_PORT", "LOG_DAY")) == {
        "PITSTOP_LOG_DAY": "PITSTOP_LOG_DAYS",
        "PITSTOP_PRT": "PITSTOP_PORT",
    }
