"""Real failures buried in routine logs: every culprit line is kept under its number, from a file and through a pipe alike."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
SCALE = float(os.environ.get("SCALE", "1"))
CASES = 60

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not (SHARED / "corpus" / "dev.jsonl").exists(), reason="the shared corpus is not beside the checkout"),
]


def cases() -> list[str]:
    names = [json.loads(line)["id"] for line in (SHARED / "corpus" / "dev.jsonl").read_text().splitlines()]
    return sorted(random.Random(3).sample(names, min(CASES, len(names))))


def compress(*arguments: str, stdin: bytes | None = None) -> tuple[dict[str, object], dict[int, bytes]]:
    """The document, and the kept lines by number."""
    command = [sys.executable, "-m", "pitstop_entry", "compress", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, input=stdin, capture_output=True, cwd=ROOT, env=environment, check=True)
    kept = [line + b"\n" for line in Path(arguments[2]).read_bytes().split(b"\n")[:-1]]
    return json.loads(ended.stdout), {int(number): text for number, _, text in (line.partition(b"\t") for line in kept)}


@pytest.mark.timeout(1800)
def test_culprit_lines_of_buried_cases_are_kept_under_their_numbers(tmp_path: Path) -> None:
    lost: list[tuple[str, int, bytes]] = []
    for place, case in enumerate(cases()):
        log, out = tmp_path / "log", tmp_path / "out"
        with log.open("wb") as file:
            made = subprocess.run(
                [
                    *(sys.executable, str(SHARED / "tools" / "training_log.py"), "--mb", str(2 * SCALE), "--seed", str(place)),
                    *("--case", f"{SHARED / 'corpus' / 'dev.jsonl'}:{case}"),
                ],
                stdout=file,
                stderr=subprocess.PIPE,
                check=True,
            )
        placed = json.loads(made.stderr.splitlines()[-1])
        data = log.read_bytes()
        lines = [line + b"\n" for line in data.split(b"\n")[:-1]]
        document, kept = compress(str(log), "-o", str(out), "--json")
        assert document["lines"] == len(lines) == placed["lines"]
        dropped = document["dropped_by_rule"]
        assert isinstance(dropped, dict)
        assert document["kept_lines"] == len(kept) == len(lines) - sum(dropped.values())
        assert all(lines[number - 1] == text for number, text in kept.items())
        lost += [(case, number, lines[number - 1]) for number in placed["culprit_lines"] if number not in kept]
        if place % 10 == 0:
            through_pipe, kept_through_pipe = compress("-", "-o", str(out), "--json", stdin=data)
            assert kept_through_pipe == kept
            assert {**through_pipe, "seconds": 0} == {**document, "seconds": 0}
    assert not lost
