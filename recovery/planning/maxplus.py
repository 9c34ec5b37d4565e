"""Max-plus convolution, the inner step of the planner: best[j] = max over k of left[j-k] + right[k].

Only values are kept: the k that reaches a value is looked for again where a plan is traced back, at the cost of one row.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

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


@cache
def _kernels() -> ModuleType:
    from recovery.planning import kernels

    return kernels


def convolve(left: Values, right: Values, kept: Sizes) -> Values:
    """`best`, of the length of both, over k in `kept` (rising).

    `left` must not decrease (idle workers are allowed); then leaving out dominated sizes changes no value of `best`.
    """
    best = np.full(len(left), -np.inf)
    _kernels().convolve(left, right, kept, best)
    return best


def best_split(left: Values, right: Values, kept: Sizes, total: int) -> tuple[float, int]:
    """max over k in `kept` (rising) of left[total-k] + right[k], and the smallest k that reaches it."""
    found: tuple[float, int] = _kernels().best_split(left, right, kept, total)
    return found


def best_middle(left: Values, middle: Values, kept: Sizes, right: Values, total: int) -> tuple[float, int, int]:
    """max over a + k + b = total, k in `kept`, of left[a] + middle[k] + right[b]; and the k and b that reach it.

    One row of the merge of `left` and `right` for each k that matters, and none of the others.
    """
    found: tuple[float, int, int] = _kernels().best_middle(left, middle, kept, right, total)
    return found
