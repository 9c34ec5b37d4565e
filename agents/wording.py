"""How far two failures are told in the same words, rare ones counting most.

Sentence vectors alone hardly tell `fatal` from `non-fatal`, a reader from a writer, or a time limit from a requeue: lines of one
piece of software are alike whatever they report.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import re2

__all__ = ["Wording"]

MASK = re2.compile(r"<[a-z]+>")
WORD = re2.compile(r"[A-Za-z][A-Za-z_]+")
# A word that every text holds still counts a little.
LEAST_WEIGHT = 0.3


def words_of(normal: str) -> frozenset[str]:
    """The words of a normal form, its masks left out."""
    return frozenset(word.lower() for word in WORD.findall(MASK.sub(" ", normal)))


class Wording:
    """Weighs words by how few of the remembered texts hold them (inverse document frequency)."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = 0
        self._holding: Counter[str] = Counter()
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        """One more remembered text counts."""
        self._texts += 1
        self._holding.update(words_of(text))

    def shared(self, one: str, other: str) -> float:
        """0 (no word in common) to 1 (the same words): the weight of the words that both normal forms hold over that of all."""
        here, there = words_of(one), words_of(other)
        whole = sum(map(self._weight, here | there))
        return sum(map(self._weight, here & there)) / whole if whole else 1.0

    def _weight(self, word: str) -> float:
        return math.log((self._texts + 1) / (self._holding[word] + 1)) + LEAST_WEIGHT
