"""The loops of max-plus convolution, compiled by numba; apart, because importing numba takes longer than most plans."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["best_middle", "best_split", "convolve"]

Values = NDArray[np.float64]
Sizes = NDArray[np.int64]


@numba.njit(cache=True, nogil=True)
def convolve(left: Values, right: Values, kept: Sizes, best: Values) -> None:
    # Four sizes a pass: `best` is read and written a quarter as often, and the loop runs in vector registers.
    length = left.shape[0]
    whole = kept.shape[0] // 4 * 4
    for index in range(0, whole, 4):
        a, b, c, d = kept[index], kept[index + 1], kept[index + 2], kept[index + 3]
        for j in range(a, min(d, length)):
            best[j] = max(best[j], left[j - a] + right[a])
            if j >= b:
                best[j] = max(best[j], left[j - b] + right[b])
            if j >= c:
                best[j] = max(best[j], left[j - c] + right[c])
        of_a, of_b, of_c, of_d = right[a], right[b], right[c], right[d]
        count = length - d
        from_a, from_b, from_c = left[d - a :], left[d - b :], left[d - c :]
        into = best[d:]
        for j in range(count):
            into[j] = max(into[j], max(max(from_a[j] + of_a, from_b[j] + of_b), max(from_c[j] + of_c, left[j] + of_d)))
    for index in range(whole, kept.shape[0]):
        k = kept[index]
        for j in range(k, length):
            best[j] = max(best[j], left[j - k] + right[k])


@numba.njit(cache=True, nogil=True)
def best_split(left: Values, right: Values, kept: Sizes, total: int) -> tuple[float, int]:
    best, chosen = -np.inf, 0
    for index in range(kept.shape[0]):
        k = kept[index]
        if k > total:
            break
        value = left[total - k] + right[k]
        if value > best:
            best, chosen = value, k
    return best, chosen


@numba.njit(cache=True, nogil=True, fastmath={"nnan", "nsz", "reassoc"})
def _highest_sum(left: Values, right: Values) -> float:
    highest = -np.inf
    for index in range(left.shape[0]):
        highest = max(highest, left[index] + right[index])
    return highest


@numba.njit(cache=True, nogil=True)
def best_middle(left: Values, middle: Values, kept: Sizes, right: Values, total: int) -> tuple[float, int, int]:
    turned = right[: total + 1][::-1].copy()
    best, chosen = -np.inf, 0
    for index in range(kept.shape[0]):
        k = kept[index]
        if k > total:
            break
        rest = total - k
        value = _highest_sum(left[: rest + 1], turned[k:]) + middle[k]
        if value > best:
            best, chosen = value, k
    rest = total - chosen
    sums = left[: rest + 1] + turned[chosen:]
    return best, chosen, rest - int(np.argmax(sums))
