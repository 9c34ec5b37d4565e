"""Slurm's way of writing many host names as one: `gpu[01-03,7],login` (man sinfo; `scontrol show hostnames`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["expand"]

PARTS = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
BRACKET = re.compile(r"\[([^\]]*)\]")
RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
# More names than any cluster has: a range that is longer is a mistake, or meant to do harm.
MOST = 200_000


def expand(text: str) -> tuple[str, ...]:
    """The names in order, zeros kept as written; what is no host list (`(null)`, an open bracket, a huge range) gives none."""
    if not text or text.startswith("(") or text.count("[") != text.count("]"):
        return ()
    names: list[str] = []
    for part in PARTS.findall(text):
        for name in _expanded(part):
            names.append(name)
            if len(names) > MOST:
                return ()
    return tuple(dict.fromkeys(names))


def _expanded(part: str) -> Iterator[str]:
    match = BRACKET.search(part)
    if match is None:
        yield part.strip()
        return
    before, after = part[: match.start()], part[match.end() :]
    for item in match[1].split(","):
        found = RANGE.fullmatch(item.strip())
        if found is None:
            return
        width = len(found[1])
        first, last = int(found[1]), int(found[2] or found[1])
        if last - first > MOST:
            return
        for number in range(first, last + 1):
            yield from _expanded(f"{before}{number:0{width}}{after}")
