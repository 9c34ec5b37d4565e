"""Recall: the evidence of a failure, looked up among remembered failures and the rules' own examples."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agents.embedding import DIMENSIONS, MAX_TOKENS, MODEL_SHA256, Embedder
from agents.memory import Calibration, Entry, Origin, Vote, vote
from agents.memory_index import MemoryIndex
from agents.normal_form import evidence_text, normal_form
from rules.account import cache_folder
from rules.diagnosis import Diagnosis
from rules.pack import Rule, RuleRole
from rules.taxonomy import UNKNOWN

__all__ = ["MemoryRecall", "example_entries", "example_vectors"]


def example_entries(rules: Iterable[Rule]) -> list[Entry]:
    """What memory knows before the first incident: the examples that rules naming a cause must match."""
    return [
        Entry(f"{rule.code}/{number}", rule.reason, normal_form(text.splitlines()), Origin.RULE_EXAMPLE)
        for rule in rules
        if rule.role is RuleRole.ROOT and rule.reason not in (None, UNKNOWN)
        for number, text in enumerate(rule.examples.match, 1)
        if rule.reason is not None
    ]


def example_vectors(entries: Sequence[Entry], embedder: Embedder) -> NDArray[np.float32]:
    """The vectors of `entries`, one row each; kept in the user's cache, since embedding a thousand takes a minute."""
    texts = [entry.text for entry in entries]
    key = hashlib.sha256("\0".join((MODEL_SHA256, str(MAX_TOKENS), *texts)).encode()).hexdigest()
    cache = cache_folder()
    kept = cache / f"examples-{key[:16]}.npy"
    with contextlib.suppress(OSError, ValueError):
        vectors: NDArray[np.float32] = np.load(kept, allow_pickle=False)
        if vectors.shape == (len(entries), DIMENSIONS) and vectors.dtype == np.float32:
            return vectors
    vectors = embedder.embed(texts)
    # A full disk or a read-only home costs the minute again next time, and nothing else.
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache, suffix=".npy", delete=False) as file:
            np.save(file, vectors)
        Path(file.name).replace(kept)
    return vectors


@dataclass(frozen=True, slots=True)
class MemoryRecall:
    """Memory as the ladder asks it. `clock` gives seconds since the epoch."""

    embedder: Embedder
    index: MemoryIndex
    clock: Callable[[], float]
    calibration: Calibration | None = None

    def __call__(self, diagnosis: Diagnosis, lines: Sequence[str] = ()) -> Vote:
        """`lines`: what was kept of the run, for failures of which the diagnosis quotes no cause."""
        text = evidence_text(diagnosis, lines)
        if not text:
            return Vote(None, 0.0, "no line that says what failed is there to look up")
        wording = self.index.wording
        found = self.index.search(self.embedder.embed([text])[0])
        return vote(found, self.clock(), self.calibration, lambda entry: wording.shared(text, entry.text))
