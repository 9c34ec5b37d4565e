"""`pitstop compress`: the contract of its output, its bad inputs, and the same through files, pipes and packed files."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from cli.main import run

LINES = [
    f"[default{rank}]: [2025-11-28 09:57:{second:02d}.123456] iteration {second:8d}/  500000 | "
    f"consumed samples: {second * 1024:12d} | elapsed time per iteration (ms): {3000 + second}.5 | "
    f"lm loss: {2 + second / 100:.6E} | loss scale: 1.0 | grad norm: 0.{rank}23 |"
    for second in range(40)
    for rank in range(4)
]
LINES[77] = "[default1]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
LINES[150] = "[default2]: something that nobody knows"
TEXT = "".join(line + "\n" for line in LINES).encode()
KEPT = f"78\t{LINES[77]}\n151\t{LINES[150]}\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_bytes(TEXT)
    return path


def compress(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        run(["compress", *arguments])
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    sys.stdout.flush()
    captured = capfd.readouterr()
    return status, captured.out, captured.err


def test_kept_lines_go_to_out_and_the_document_adds_up(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = log.with_name("kept")
    status, printed, complaints = compress(capfd, str(log), "-o", str(out), "--json")
    document = json.loads(printed)
    assert (status, complaints, out.read_text()) == (0, "", KEPT)
    assert set(document) == {"lines", "bytes", "kept_lines", "kept_bytes", "dropped_by_rule", "measurements", "seconds"}
    assert (document["lines"], document["bytes"], document["kept_lines"]) == (160, len(TEXT), 2)
    assert document["kept_bytes"] == len(LINES[77]) + len(LINES[150]) + 2
    assert sum(document["dropped_by_rule"].values()) == 158


def test_steps_losses_and_the_last_time_of_each_rank_stay_visible(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, printed, _ = compress(capfd, str(log), "--json")
    ranks = json.loads(printed)["measurements"]
    assert set(ranks) == {"0", "1", "2", "3"}
    assert ranks["3"]["series"]["step"] == {"count": 40, "last": 39.0, "min": 0.0, "max": 39.0}
    assert ranks["3"]["series"]["loss"] == {"count": 40, "last": 2.39, "min": 2.0, "max": 2.39}
    assert ranks["1"]["series"]["loss"]["count"] == 39
    assert (ranks["3"]["last_line"], ranks["3"]["last_time"]) == (160, 1764323859.123456)
    assert ranks["0"]["readings"][1] == {
        "line": 5, "time": 1764323821.0, "step": 1.0, "iteration_ms": 3001.5, "loss": 2.01, "grad_norm": 0.023,
    }  # fmt: skip


@pytest.mark.parametrize("packed", [gzip.compress(TEXT, mtime=0), zstandard.ZstdCompressor().compress(TEXT), TEXT])
def test_packed_files_and_pipes_give_the_same(packed: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.bin"
    path.write_bytes(packed)
    assert compress(capfd, str(path))[:2] == (0, KEPT)
    command = [sys.executable, "-m", "pitstop_entry", "compress", "-"]
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        command, input=packed, capture_output=True, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, check=False
    )
    assert (ended.returncode, ended.stdout.decode()) == (0, KEPT)


def test_colour_hides_nothing_and_stays_in_what_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    coloured = b"\x1b[31mCUDA out of \x1b[1mmemory\x1b[0m. Tried to allocate 2.00 GiB"
    path = tmp_path / "log"
    path.write_bytes(b"".join(f"\x1b[32m{line}\x1b[0m\n".encode() for line in LINES[:70]) + coloured + b"\n")
    status, printed, _ = compress(capfd, str(path))
    assert (status, printed) == (0, f"71\t{coloured.decode()}\n")


def test_a_last_line_without_its_newline_counts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo")
    assert compress(capfd, str(path))[1] == "1\tone\n2\ttwo\n"


def test_an_empty_file_is_no_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").touch()
    status, printed, _ = compress(capfd, str(tmp_path / "log"), "--json")
    assert status == 0 and json.loads(printed)["lines"] == 0


def test_bad_inputs_end_with_2_and_one_line(log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "many").mkdir()
    for name in "ab":
        (tmp_path / "many" / name).write_text("x\n")
    (tmp_path / "packed").write_bytes(lzma.compress(TEXT))
    (tmp_path / "noise").write_bytes(bytes(range(1, 32)) * 99)
    for arguments in (
        [str(tmp_path / "absent")],
        [str(tmp_path / "many")],
        ["/dev/zero"],
        [str(tmp_path / "packed")],
        [str(tmp_path / "noise")],
        [str(log), "-o", str(log)],
        [str(log), "-o", "/dev/null/x"],
        [str(log), "--json", "-o", "-"],
    ):
        status, printed, complaints = compress(capfd, *arguments)
        assert (status, printed, complaints.count("\n")) == (2, "", 1), complaints
    assert log.read_bytes() == TEXT


def test_a_full_disk_fails_with_one_line(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, _, complaints = compress(capfd, str(log), "-o", "/dev/full")
    assert status == 1 and complaints.count("\n") == 1 and "No space left" in complaints


def test_nothing_heavy_is_imported(log: Path) -> None:
    root = Path(__file__).parents[2]
    script = (
        f"import sys; from cli.main import run; run(['compress', {str(log)!r}, '-o', '/dev/null']); "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    environment = os.environ | {"PYTHONPATH": str(root)}
    printed = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True).stdout
    assert set(printed.split()).isdisjoint(
        {
            *("yaml", "pydantic", "torch", "fastapi", "numpy", "typer", "rich", "sqlalchemy", "asyncio"),
            *("shutil", "datetime", "zstandard", "multiprocessing"),
        }
    )
