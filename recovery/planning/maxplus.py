"""Max-plus convolution, the inner step of the planner: best[j] = max over k of left[j-k] + right[k].

Only values are kept: the k that reaches a value is looked for again where a plan is traced back, at the cost of one row.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["Sizes", "Values", "best_middle", "best_split", "convolve", "undominated"]

Values = NDArray[np.float64]
Sizes = NDArray[np.int64]


def undominated(right: Values) -> Sizes:
    """Sizes worth considering: k is not, where a smaller size gains at least as much (the rest may stand idle)."""
    highest = np.maximum.accumulate(right)
    keep = np.ones(len(right), dtype=np.bool_)
    keep[1:] = right[1:] > highest[:-1]
    sizes: Sizes = np.flatnonzero(keep)
    return sizes


@numba.njit(cache=True, nogil=True)
def _convolve(left: Values, right: Values, kept: Sizes, best: Values) -> None:
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


def convolve(left: Values, right: Values, kept: Sizes) -> Values:
    """`best`, of the length of both, over k in `kept` (rising).

    `left` must not decrease (idle workers are allowed); then leaving out dominated sizes changes no value of `best`.
    """
    best = np.full(len(left), -np.inf)
    _convolve(left, right, kept, best)
    return best


@numba.njit(cache=True, nogil=True)
def best_split(left: Values, right: Values, kept: Sizes, total: int) -> tuple[float, int]:
    """max over k in `kept` (rising) of left[total-k] + right[k], and the smallest k that reaches it."""
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
    """max over a + k + b = total, k in `kept`, of left[a] + middle[k] + right[b]; and the k and b that reach it.

    One row of the merge of `left` and `right` for each k that matters, and none of the others.
    """
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
