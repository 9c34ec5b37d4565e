"""The index of remembered failures: nearest neighbours by cosine similarity, with FAISS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agents.memory import Entry
from agents.wording import Wording

__all__ = ["MemoryIndex"]

# Up to here comparing with every entry takes under 5 ms.
FLAT_LIMIT = 20_000
# Vectors a list that its centre is found from; more of them move it hardly.
TRAINED = 40


class MemoryIndex:
    """Entries with their vectors, searched with FAISS: exact up to 20,000 entries, by inverted lists beyond."""

    def __init__(self, entries: Sequence[Entry], vectors: NDArray[np.float32]) -> None:
        """`vectors` has one unit row an entry. Raises ValueError where the shapes disagree."""
        import faiss

        if len(entries) != len(vectors):
            raise ValueError(f"{len(entries)} entries but {len(vectors)} vectors")
        self.entries = list(entries)
        self.wording = Wording(entry.text for entry in entries)
        dimensions = vectors.shape[1] if len(vectors) else 1
        self._index: faiss.Index
        if len(entries) <= FLAT_LIMIT:
            self._index = faiss.IndexFlatIP(dimensions)
        else:
            lists = 512 if len(entries) < 500_000 else 1024
            inverted = faiss.IndexIVFFlat(faiss.IndexFlatIP(dimensions), dimensions, lists, faiss.METRIC_INNER_PRODUCT)
            inverted.train(vectors[:: max(1, len(vectors) // (TRAINED * lists))])
            inverted.nprobe = 16
            self._index = inverted
        if len(vectors):
            self._index.add(np.ascontiguousarray(vectors, dtype=np.float32))

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: Entry, vector: NDArray[np.float32]) -> None:
        """Remember one more failure; `vector` is its unit row. Raises ValueError where the index began empty."""
        if not self.entries:
            raise ValueError("an empty index knows no dimensions: build it with its first entry")
        self._index.add(np.ascontiguousarray(vector.reshape(1, -1), dtype=np.float32))
        self.entries.append(entry)
        self.wording.add(entry.text)

    def search(self, vector: NDArray[np.float32], most: int = 32) -> list[tuple[Entry, float]]:
        """The most similar entries with their cosine similarity, best first."""
        if not self.entries:
            return []
        import faiss

        # One query is too little work to share: handing it to other threads costs more than it saves.
        faiss.omp_set_num_threads(1)
        similarities, places = self._index.search(
            np.ascontiguousarray(vector.reshape(1, -1), dtype=np.float32), min(most, len(self))
        )
        return [
            (self.entries[place], float(score)) for place, score in zip(places[0], similarities[0], strict=True) if place >= 0
        ]
