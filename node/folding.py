"""Equal lines in a row, told once: the first and the last as they stand, and how many there were between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import eq

__all__ = ["fold"]

# The stamp at the beginning of a line: [ 1234.567890], 2026-01-31T12:00:00.123Z, Jan 31 12:00:00
STAMP = re.compile(r"^\W*(?:[A-Z][a-z]{2} +)?\d[\d:.,TZ+\-/ ]*\W*")
# Only lines that are equal in their end and behind the longest usual stamp are worth a closer look.
END, STAMP_LENGTH = 12, 32


def fold(first: int, texts: Sequence[str]) -> list[tuple[int, Sequence[str]]]:
    """The lines `texts` of one file, numbered from `first` on, without those that equal both neighbours but for the stamp they
    begin with. In their place stands one line that counts them, under the number of the last of them.

    Lines whose numbers follow one another are given together, with the number of the first.
    """
    rests = [text[STAMP_LENGTH:] for text in texts]
    if not any(map(eq, rests, islice(rests, 1, None))):
        return [(first, texts)] if texts else []
    kept: list[tuple[int, str]] = []
    leader, end, rest, repeats = "", "", "", 0
    for number, text in enumerate(texts, first):
        if text[-END:] == end and text[STAMP_LENGTH:] == rest and number > first and bare(text) == bare(leader):
            repeats += 1
            continue
        if repeats:
            kept += ending(number - 1, texts[number - 1 - first], repeats)
            repeats = 0
        kept.append((number, text))
        leader, end, rest = text, text[-END:], text[STAMP_LENGTH:]
    if repeats:
        kept += ending(first + len(texts) - 1, texts[-1], repeats)
    return runs(kept)


def runs(numbered: Iterable[tuple[int, str]]) -> list[tuple[int, Sequence[str]]]:
    found: list[tuple[int, list[str]]] = []
    following = -1
    for number, text in numbered:
        if number != following:
            found.append((number, []))
        found[-1][1].append(text)
        following = number + 1
    return [*found]


def bare(text: str) -> str:
    return STAMP.sub("", text, count=1)


def ending(number: int, text: str, repeats: int) -> list[tuple[int, str]]:
    last = (number, text)
    if repeats == 1:
        return [last]
    count = repeats - 1
    return [(number - 1, f"pitstop: {count} more line{'s' if count > 1 else ''} like the one before"), last]
