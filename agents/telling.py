"""Telling lines: where no rule recognises a line, those of a failed run that read as if they said what went wrong."""

from __future__ import annotations

from collections.abc import Sequence

import re2

__all__ = ["complains", "telling_lines", "tells_of_exit"]

# Words of complaint, whatever the level of the line: only half of the telling lines are logged as errors (L4, FSE 2025).
COMPLAINT = re2.compile(
    r"(?i)\b(?:error|fatal|critical|exception|fail(?:ed|ure|s|ing)?|abort(?:ed|ing|s)?|panic|cannot|can't|could not|couldn't|"
    r"unable|refus(?:ed|es|ing)|lost|lose|tim(?:ed|e) ?out|timeout|invalid|illegal|corrupt(?:ed|ion)?|denied|unexpected|"
    r"assert(?:ion)?|killed|gave up|giving up|died|dead|broken|desync\w*|mismatch(?:ed)?|not found|missing|out of range|"
    r"out of bounds|overflow|stuck|unreachable|rejected|violat\w+|inconsistent|exhausted|exceeded)\b"
)
# How processes ended, and the frames around it: alike whatever the cause.
ENDING = re2.compile(
    r"(?i)exit ?code|exit status|ended with (?:signal|exit)|signal \d+ \(SIG|ChildFailedError|Root Cause \(first observed|"
    r"Traceback \(most recent|^\s*File \"|Sending process \d+ closing signal|error_file|local_rank: \d+ \(pid|torchelastic|"
    r"RuntimeError: DataLoader worker|srun: error: .*(?:Exited|task)|elastic/multiprocessing"
)
# What the program itself thought routine. `NCCL WARN` is how NCCL says its errors.
LEVELS = (
    re2.compile(r"\b(?:INFO|DEBUG|TRACE|NOTICE)\b|^(?:\[[ID]|[ID]\d{4})\d{0,4} |\b(?:level|severity)=\"?(?:info|debug)"),
    re2.compile(r"(?:^|[^L] |\S)\bWARN(?:ING)?\b|^(?:\[W|W\d{4})\d{0,4} |Warning:|\b(?:level|severity)=\"?warn"),
)
LONGEST = 4_000


def complains(text: str) -> bool:
    """Whether a line reads as if something went wrong."""
    return bool(COMPLAINT.search(text[:LONGEST]))


def tells_of_exit(text: str) -> bool:
    """Whether a line says no more than that or how a process ended."""
    return bool(ENDING.search(text[:LONGEST]))


def telling_lines(lines: Sequence[str], most: int = 6) -> list[str]:
    """The last `most` different complaints among `lines`, in order: of what was complained of earlier the run did not end.

    Of those the gravest alone: what the program logged as information or as a warning counts where it logged nothing worse, since
    another run of the same failure has other such lines around it.
    """
    by_level: dict[int, dict[str, None]] = {}
    for text in reversed(lines):
        if complains(text) and not tells_of_exit(text):
            found = by_level.setdefault(level_of(text), {})
            if len(found) < most:
                found.setdefault(text)
    return list(reversed(by_level[max(by_level)])) if by_level else []


def level_of(text: str) -> int:
    """0 for information, 1 for a warning, 2 for the rest: most lines that matter bear no level at all."""
    head = text[:LONGEST]
    return next((level for level, pattern in enumerate(LEVELS) if pattern.search(head)), len(LEVELS))
