"""`pitstop freeze` against a real service, and against none."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from cli.main import run
from cli.stories.stage import free_port
from tests.service.service_process import ServiceProcess


def test_a_service_that_is_not_there_and_a_token_that_is_not_there_get_one_line(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        run(["freeze", "--service", f"http://127.0.0.1:{free_port()}"])
    assert ended.value.code == 1
    assert "does not answer" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        run(["freeze", "--token-file", str(tmp_path / "none")])
    assert ended.value.code == 2
    assert "cannot read the token file" in capsys.readouterr().err


@pytest.mark.acceptance
def test_a_freeze_holds_until_it_is_undone(capsys, tmp_path: Path):
    def act(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            run(["freeze", *arguments, "--service", service.url, "--token-file", str(tmp_path / "data" / "admin.token")])
        assert ended.value.code == 0
        return str(capsys.readouterr().out)

    with ServiceProcess(tmp_path / "data") as service:
        assert act("firmware tonight") == "frozen by admin: firmware tonight\n"
        assert httpx2.get(f"{service.url}/api/v1/freeze", timeout=120).json()["frozen"]
        assert "acts again" in act("--off")
