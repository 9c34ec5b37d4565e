"""Max-plus convolution, the inner step of the planner: best[j] = max over k of left[j-k] + right[k]."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["best_at", "convolve"]

Values = NDArray[np.float64]
Sizes = NDArray[np.int32]


@numba.njit(cache=True, nogil=True)
def _convolve(left: Values, right: Values, kept: Sizes, best: Values, choice: Sizes) -> None:
    # Row by row over k keeps the inner loop free of branches on memory, so that it runs in vector registers.
    length = left.shape[0]
    for index in range(kept.shape[0]):
        k = kept[index]
        value = right[k]
        for j in range(k, length):
            candidate = left[j - k] + value
            if candidate > best[j]:
                best[j] = candidate
                choice[j] = k


def undominated(right: Values) -> Sizes:
    """Sizes worth considering: k is not, where a smaller size gains at least as much (the rest may stand idle)."""
    highest = np.maximum.accumulate(right)
    keep = np.ones(len(right), dtype=bool)
    keep[1:] = right[1:] > highest[:-1]
    sizes: Sizes = np.flatnonzero(keep).astype(np.int32)
    return sizes


def convolve(left: Values, right: Values) -> tuple[Values, Sizes]:
    """`best` and the k that reaches it (the smallest), both of the length of `left`.

    `left` must not decrease (idle workers are allowed); then leaving out dominated sizes changes no value of `best`.
    """
    best = np.full(len(left), -np.inf)
    choice = np.zeros(len(left), dtype=np.int32)
    _convolve(left, right[: len(left)], undominated(right[: len(left)]), best, choice)
    return best, choice


def best_at(left: Values, right: Values, total: int) -> tuple[float, int]:
    """max over k of left[total-k] + right[k], and its k (the smallest)."""
    sums = left[total::-1] + right[: total + 1]
    k = int(np.argmax(sums))
    return float(sums[k]), k
