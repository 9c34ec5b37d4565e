"""Matched lines of a shape that was seen before: what a rule captures in one stands at the same place in the next.

One fault can print a line a million times, differing in its digits only. The first two are looked at with care, the others are
read off by position.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from detectors.reading.ledger import Tally
from detectors.reading.lines import LineMaker
from detectors.reading.text import MAX_TEXT_BYTES, Span, read_prefixes
from rules.matcher import Matcher
from rules.shapes import shape_of

__all__ = ["FamiliarShapes", "Reading"]

MAX_SHAPES = 4_096
# Readings of them that are remembered.
MAX_READINGS = 16_384
# In a shape, whose digits are all 0.
HEXADECIMAL = re.compile(rb"0x[0a-f]+")


@dataclass(slots=True)
class Reading:
    """What a matched line says: who wrote it, and what its rule captures. `tally`: where such lines are counted, once one was."""

    rank: int | None
    node: str | None
    captures: Mapping[str, str]
    tally: Tally | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """Where in every line of one shape that one rule matches its parts stand; what is said there, by the text of all of them."""

    rank: Span | None
    local: Span | None
    node: Span | None
    captures: tuple[tuple[str, Span], ...]
    readings: dict[tuple[bytes, ...], Reading] = field(default_factory=dict)

    def told(self, raw: bytes) -> tuple[bytes, ...]:
        spans = (self.rank, self.local, self.node, *(span for _, span in self.captures))
        return tuple([raw[span[0] : span[1]] if span else b"" for span in spans])


class FamiliarShapes:
    """The shapes of one source that were looked at with care."""

    def __init__(self, matcher: Matcher, maker: LineMaker) -> None:
        self._matcher = matcher
        self._maker = maker
        self._blind = matcher.expressions.blind
        self._captures = matcher.expressions.captures
        self._places: dict[tuple[int, bytes], Places] = {}
        self._seen: set[tuple[int, bytes]] = set()
        self._readings = 0

    def read(self, rule: int, raw: bytes) -> Reading | None:
        """What `raw` says, where its shape is known."""
        if not self._blind[rule]:
            return None
        places = self._places.get(self._key(rule, raw))
        if places is None:
            return None
        told = places.told(raw)
        reading = places.readings.get(told)
        if reading is None:
            rank = self._maker.resolve(number_at(raw, places.rank), number_at(raw, places.local))
            node = raw[slice(*places.node)].decode("ascii") if places.node else self._maker.path_node
            captures = {name: raw[start:end].decode("ascii") for name, (start, end) in places.captures}
            reading = Reading(rank, node, captures)
            # Which rank a local one stands for may change from line to line.
            if places.local is None and self._readings < MAX_READINGS:
                places.readings[told] = reading
                self._readings += 1
        return reading

    def learn(self, rule: int, raw: bytes) -> None:
        """Line `raw` was looked at: nobody tore it, and it is no frame."""
        # Where text and bytes have the same places, and no captured digits decide what else is captured.
        if not self._blind[rule] or len(raw) > MAX_TEXT_BYTES or not raw.isascii() or raw.startswith(b"\0"):
            return
        key = self._key(rule, raw)
        # What never comes again is not worth it.
        if key not in self._seen:
            self._seen.add(key)
            return
        if len(self._seen) >= MAX_SHAPES:
            self._places.clear()
            self._seen.clear()
            self._readings = 0
        prefixes = read_prefixes(raw.decode("ascii"))
        spans = self._matcher.capture_spans(rule, raw)
        self._places[key] = Places(prefixes.rank, prefixes.local, prefixes.node, tuple(spans.items()))

    def _key(self, rule: int, raw: bytes) -> tuple[int, bytes]:
        """Addresses and other hexadecimal numbers stand in the way of nothing where the rule captures nothing."""
        shape = shape_of(raw)
        if b"0x" in shape and not self._captures[rule]:
            shape = HEXADECIMAL.sub(lambda number: b"0" * len(number[0]), shape)
        return rule, shape


def number_at(raw: bytes, span: Span | None) -> int | None:
    return int(raw[span[0] : span[1]]) if span else None
