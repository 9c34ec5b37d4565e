"""The logs that benchmarks read, made once under benchmarks/tmp from the shared material (read in place, never copied)."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from rules.pack import RuleRole, load_packs

__all__ = ["SCRATCH", "SHARED", "loghub_like", "routine_patterns", "training_log"]

SHARED = Path(__file__).resolve().parents[2] / "shared"
SCRATCH = Path(__file__).parent / "tmp"


def training_log(megabytes: int, case: str = "case-0003") -> Path:
    """A training log of 64 ranks with one failure buried near its end."""
    path = SCRATCH / f"training-{megabytes}.log"
    if not path.exists():
        SCRATCH.mkdir(exist_ok=True)
        partial = path.with_suffix(".part")
        with partial.open("wb") as file:
            subprocess.run(
                [
                    *(sys.executable, str(SHARED / "tools" / "training_log.py"), "--mb", str(megabytes)),
                    *("--case", f"{SHARED / 'corpus' / 'dev.jsonl'}:{case}"),
                ],
                stdout=file,
                stderr=subprocess.DEVNULL,
                check=True,
            )
        partial.rename(path)
    return path


def loghub_like(megabytes: int) -> Path:
    """Lines of the four loghub samples in random order, with other digits each time."""
    path = SCRATCH / f"loghub-{megabytes}.log"
    if not path.exists():
        SCRATCH.mkdir(exist_ok=True)
        whim = random.Random(7)
        lines = [line + b"\n" for log in sorted((SHARED / "logs").glob("*.log")) for line in log.read_bytes().splitlines()]
        tables = []
        for _ in range(512):
            digits = list(b"0123456789")
            whim.shuffle(digits)
            tables.append(bytes.maketrans(b"0123456789", bytes(digits)))
        partial = path.with_suffix(".part")
        with partial.open("wb") as file:
            while file.tell() < megabytes * 1_000_000:
                file.write(b"".join(whim.choice(lines).translate(whim.choice(tables)) for _ in range(10_000)))
        partial.rename(path)
    return path


def routine_patterns(count: int) -> Path:
    """A file of the first `count` routine patterns that ripgrep takes, one a line."""
    path = SCRATCH / f"patterns-{count}"
    SCRATCH.mkdir(exist_ok=True)
    patterns = [
        pattern
        for rule in load_packs()
        if rule.role is RuleRole.ROUTINE and rule.pack.startswith("routine_")
        for pattern in rule.any
        if pattern.isascii()
    ]
    path.write_text("".join(pattern + "\n" for pattern in patterns[:count]))
    if len(patterns) < count:
        raise RuntimeError(f"only {len(patterns)} routine patterns")
    return path
