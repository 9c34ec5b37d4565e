"""`pitstop diagnose` as people and machines call it."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

ENTRY = Path(__file__).parents[2] / "pitstop_entry.py"


def pitstop(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, str(ENTRY), *arguments], input=stdin, capture_output=True, timeout=120, check=False)


def test_json_is_one_document_with_the_inputs_that_were_read(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_text("step 1\nstep 2\n")
    done = pitstop("diagnose", "--json", str(tmp_path / "rank_0.log"), "-", stdin=b"hello\n")
    document = json.loads(done.stdout)
    assert (done.returncode, document["version"], document["reason"]) == (0, 1, "none")
    assert [(Path(read["path"]).name, read["lines"], read["bytes"]) for read in document["inputs"]] == [
        ("rank_0.log", 2, 14),
        ("-", 1, 6),
    ]


@pytest.mark.parametrize("arguments", [["/nowhere"], []])
def test_bad_usage_ends_with_status_2_and_says_what_to_do(arguments: list[str]) -> None:
    done = pitstop("diagnose", *arguments)
    assert done.returncode == 2
    assert done.stdout == b"" and done.stderr.strip()


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1\n")
    pitstop("diagnose", "--json", str(tmp_path / "train.log"))
    script = (
        f"from cli.main import run; run(['diagnose', '--json', {str(tmp_path / 'train.log')!r}]); import sys; "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    environment = os.environ | {"PYTHONPATH": str(ENTRY.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    heavy = {"yaml", "pydantic", "torch", "fastapi", "numpy", "typer", "rich", "sqlalchemy", "asyncio", "multiprocessing"}
    assert heavy.isdisjoint(done.stderr.split())


def test_an_archive_that_swells_without_end_is_read_in_part_and_says_so(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    with bomb.open("wb") as file:
        part = gzip.compress(bytes(64 << 20))
        for _ in range(6):
            file.write(part)
    done = pitstop("diagnose", "--json", str(bomb))
    (read,) = json.loads(done.stdout)["inputs"]
    assert "expands more than 900 times" in read["note"] and read["bytes"] < 300 << 20


def test_a_failure_at_the_end_of_a_progress_bar_of_ten_megabytes_is_found(tmp_path: Path) -> None:
    bar = b"".join(b"%3d%%|#####     | %d/29\r" % (n % 100, n) for n in range(500_000))
    (tmp_path / "bar.log").write_bytes(b"start\n" + bar + b"Traceback (most recent call last):\nKeyError: 'height'")
    document = json.loads(pitstop("diagnose", "--json", str(tmp_path / "bar.log")).stdout)
    assert document["reason"] == "python_key_error"
    assert [item["line"] for item in document["evidence"] if item["role"] == "root"] == [3]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(40), "zip archive"),
        (b"\x80\x02cos\nsystem\n.", "more than plain data"),
        (random.Random(4).randbytes(5_000), "binary data"),
        (gzip.compress(b"x" * 99, mtime=0)[:12] + bytes(9), "unreadable: the gzip data is damaged"),
        (zstandard.ZstdCompressor().compress(b"x" * 99)[:9], "unreadable: the zstd data ends early"),
    ],
)
def test_what_holds_nothing_readable_is_an_error_of_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "x").write_bytes(content)
    done = pitstop("diagnose", "--json", str(tmp_path / "x"))
    assert (done.returncode, done.stdout) == (2, b"")
    assert says in done.stderr.decode() and len(done.stderr.decode().strip().splitlines()) == 1


def test_of_a_folder_what_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_text("KeyError: 'height'\n")
    (tmp_path / "rank_1.log").symlink_to("rank_1.log")
    done = pitstop("diagnose", "--json", str(tmp_path))
    document = json.loads(done.stdout)
    assert (done.returncode, document["reason"]) == (0, "python_key_error")
    assert [read["kind"] for read in document["inputs"]] == ["log", "unreadable"]
    assert done.stderr.decode().count("\n") == 1 and b"left out 1 of 2 files" in done.stderr and b"rank_1.log" in done.stderr
    assert b"Left out " in pitstop("diagnose", str(tmp_path)).stdout


def test_a_folder_of_which_nothing_can_be_read_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "new\nline.log").symlink_to("nowhere")
    done = pitstop("diagnose", "--json", str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert b"is unreadable: no such file" in done.stderr


def test_a_report_that_cannot_be_written_ends_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("KeyError: 'height'\n")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, str(ENTRY), "diagnose", str(tmp_path / "train.log")],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1) and b"cannot write standard output" in done.stderr


def test_a_path_that_is_no_unicode_and_a_text_that_is_none_give_valid_json(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.log"
    Path(os.fsdecode(path)).write_bytes(b"KeyError: '\xff\xfe'\n")
    done = subprocess.run([sys.executable, str(ENTRY), "diagnose", "--json", path], capture_output=True, timeout=120, check=False)
    assert json.loads(done.stdout)["reason"] == "python_key_error"
    plain = subprocess.run([sys.executable, str(ENTRY), "diagnose", path], capture_output=True, timeout=120, check=False)
    assert plain.returncode == 0 and plain.stdout
