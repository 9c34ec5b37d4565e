"""What everybody meets who types something else than what is meant, or starts us in a strange place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import COMMANDS
from cli.main import run as run_command_line
from rules.account import NoHome, cache_folder, state_folder, user_name

ENTRY = Path(__file__).parents[2] / "pitstop_entry.py"


@pytest.mark.parametrize("words", [[name, "--no-such-option"] for name in COMMANDS if name != "run"], ids=lambda words: words[0])
def test_bad_usage_of_any_command_is_one_line_that_leads_to_its_help(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command_line(words)
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == ""
    assert told.err.count("\n") == 1 and f"pitstop {words[0]} --help" in told.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan"], "missing argument 'STATE.yaml'; pitstop plan --help"),
        (["rules"], "missing command; pitstop rules --help"),
        (["rules", "show"], "missing argument 'code'; pitstop rules show --help"),
        (["serve", "--port", "99999"], "invalid value for '--port'"),
        (["diagnose"], "required: PATH; pitstop diagnose --help"),
        (["pipeline", "plan", "x", "--seconds", "soon"], "invalid float value: 'soon'"),
        (["run"], "missing argument '-- COMMAND...'; pitstop run --help"),
    ],
)
def test_the_line_names_what_is_missing_or_wrong(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command_line(words)
    told = capsys.readouterr().err
    assert ended.value.code == 2 and message in told and told.count("\n") == 1


UNREADABLE = {"nowhere": "no such file or directory; check the path", "": "it is a directory", "binary": "it is not UTF-8 text"}


@pytest.mark.parametrize("name", UNREADABLE, ids=lambda name: name or "directory")
@pytest.mark.parametrize(
    "command", ["plan", "simulate", "evaluate", "trials plan", "trials run", "pipeline plan", "pipeline plans"]
)
def test_a_file_that_cannot_be_read_is_named_with_what_to_do(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SystemExit) as ended:
        run_command_line([*command.split(), str(tmp_path / name)])
    told = capsys.readouterr()
    assert (ended.value.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert f"cannot read {tmp_path / name}: {UNREADABLE[name]}" in told.err and "Errno" not in told.err


def test_what_is_nearly_the_code_of_a_rule_is_told_which_one_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command_line(["rules", "show", "ps-xid-79"])
    assert (ended.value.code, "PS-XID-079" in capsys.readouterr().err) == (2, True)


def test_a_demo_empties_no_folder_that_is_not_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SystemExit) as ended:
        run_command_line(["demo", "--folder", str(tmp_path)])
    assert (ended.value.code, "name a new folder" in capsys.readouterr().err) == (2, True)
    assert (tmp_path / "thesis.tex").exists()


def test_no_file_of_ours_takes_the_place_of_a_closed_output() -> None:
    code = (
        "import os, pitstop_entry; pitstop_entry.fill_standard_descriptors(); print('lost')\n"
        "raise SystemExit(os.open(os.devnull, os.O_RDONLY))"
    )
    done = subprocess.run(["sh", "-c", '"$0" "$@" <&- >&- 2>&-', sys.executable, "-c", code], cwd=ENTRY.parent, timeout=60)
    assert done.returncode == 3


def test_a_working_directory_that_is_gone_is_told_in_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f'rmdir {gone}; exec "$0" "$@"'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, "-P", str(ENTRY), "--version"], cwd=gone, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "working directory" in done.stderr


def test_a_user_whom_no_table_names_has_a_number_for_a_name_and_is_told_to_name_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert user_name() == f"uid {os.getuid()}"
    assert not cache_folder().parent.exists()
    with pytest.raises(NoHome, match="PITSTOP_DATA_DIR"):
        state_folder()
