"""The lines around lines that matter, read once more from where they stand."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from detectors.reading.sources import LineReader, Source, UnreadableInput
from detectors.reading.text import line_text, strip_escapes

__all__ = ["lines_around"]


def lines_around(path: str, numbers: Collection[int], around: int = 2) -> dict[int, str]:
    """Text by line number for each of `numbers` and `around` lines on each side; empty where `path` cannot be read again.

    Reading ends at the last line that is wanted. Standard input and pipes cannot be read twice.
    """
    wanted = {number for centre in numbers for number in range(max(1, centre - around), centre + around + 1)}
    found: dict[int, str] = {}
    # A pipe cannot be read twice either.
    if path == "-" or not wanted or not Path(path).is_file():
        return found
    last = max(wanted)
    try:
        with LineReader(Source(path)) as reader:
            for block in reader:
                here = [number for number in wanted if block.first <= number < block.first + block.lines]
                if here:
                    lines = strip_escapes(block.data).split(b"\n")
                    found.update((number, line_text(lines[number - block.first])) for number in here)
                if block.first + block.lines > last:
                    break
    except UnreadableInput:
        return {}
    return found
