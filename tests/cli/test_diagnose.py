"""`pitstop diagnose` as people and machines call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ENTRY = Path(__file__).parents[2] / "pitstop_entry.py"


def pitstop(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, str(ENTRY), *arguments], input=stdin, capture_output=True, timeout=60, check=False)


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
