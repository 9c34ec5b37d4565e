"""The monitor inside a training process, as a real process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pitstop import layout, protocol

SDK = Path(layout.__file__).parent.parent


def run_script(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SDK), **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )


USE = """
import pitstop
monitor = pitstop.init()
with monitor.step(3):
    monitor.report(loss=1.0)
    with monitor.data(), monitor.evaluation(), monitor.checkpoint():
        pass
print("went on")
"""


def test_without_an_agent_every_call_does_nothing_and_nothing_is_said(tmp_path: Path) -> None:
    done = run_script(USE, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


def test_an_unusable_file_is_said_once_and_training_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "monitor"
    file.write_bytes(b"something else" * 100)
    done = run_script(USE, tmp_path, **{protocol.MONITOR: str(file)})
    assert done.returncode == 0 and done.stdout == "went on\n"
    assert done.stderr.count("not monitored") == 1


def test_importing_pitstop_imports_nothing_until_a_name_is_asked_for(tmp_path: Path) -> None:
    code = "import sys; before = set(sys.modules); import pitstop; print(sorted(set(sys.modules) - before))"
    assert run_script(code, tmp_path).stdout == "['pitstop']\n"


def test_a_rank_signs_its_file_with_pid_and_start_time(tmp_path: Path) -> None:
    file = tmp_path / "monitor"
    layout.create(str(file), 1, 2)
    done = run_script("import os, pitstop; pitstop.init(); print(os.getpid())", tmp_path, **{protocol.MONITOR: str(file)})
    header = layout.read_header(file.read_bytes())
    assert header.pid == int(done.stdout) and header.started > 0


def test_a_rank_leaves_the_file_of_another_rank_alone(tmp_path: Path) -> None:
    file = tmp_path / "monitor"
    layout.create(str(file), 0, 0)
    before = file.read_bytes()
    done = run_script(USE, tmp_path, **{protocol.MONITOR: str(file), "RANK": "1"})
    assert done.stdout == "went on\n" and file.read_bytes() == before


def test_an_uncaught_exception_is_passed_on_with_type_text_rank_and_step(tmp_path: Path) -> None:
    file, error_file = tmp_path / "monitor", tmp_path / "error.json"
    layout.create(str(file), 1, 0)
    code = "import pitstop\nmonitor = pitstop.init()\nwith monitor.step(17):\n    raise ValueError('bad batch')"
    done = run_script(code, tmp_path, **{protocol.MONITOR: str(file), protocol.ERROR_FILE: str(error_file)})
    assert done.returncode == 1 and "ValueError: bad batch" in done.stderr
    document = json.loads(error_file.read_text())
    assert document["message"]["message"] == "ValueError: bad batch"
    assert document["message"]["extraInfo"]["rank"] == 1
    parsed = protocol.parse_error_document(error_file.read_text())
    assert parsed is not None and parsed["step"] == 17 and "line 4" in parsed["callstack"] and parsed["timestamp"] > 0
    content = file.read_bytes()
    read = layout.read_progress(content, layout.read_header(content))
    assert read is not None and read.section is layout.Section.FAILED


def test_an_error_file_that_torch_wrote_already_stands(tmp_path: Path) -> None:
    error_file = tmp_path / "error.json"
    error_file.write_text('{"message": "torch was first"}')
    run_script("import pitstop; pitstop.init(); 1 / 0", tmp_path, **{protocol.ERROR_FILE: str(error_file)})
    parsed = protocol.parse_error_document(error_file.read_text())
    assert parsed is not None and parsed["message"] == "torch was first"


def test_what_is_no_error_file_is_none() -> None:
    assert [protocol.parse_error_document(text) for text in ("", "[]", "{}", '{"message": 3}', "{")] == [None] * 5
