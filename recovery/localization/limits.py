"""How long a probe may take, by what probes took on these machines just now: a dead peer is given up soon, a busy one is not."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

__all__ = ["FIRST_WORLD_SECONDS", "alone_limit", "world_limit"]

ALONE_SECONDS = 5.0
# The limit of a world while nothing was measured, and of the first worlds at least.
FIRST_WORLD_SECONDS = 2.0
LONGEST_SECONDS, SHORTEST_SECONDS = 6.0, 1.0
# So many times what a probe alone took in the middle, and what a world that passed took at most.
ALONE_FACTOR, WORLD_FACTOR = 8.0, 3.0


def alone_limit(turn: int, present: float) -> float:
    """The limit of a probe alone in batch `turn`, in seconds: once the other nodes were measured, half of what a world gets now
    (`present`), so that a dead node is not waited for twice as long as before anything was known."""
    return ALONE_SECONDS if turn == 0 else min(ALONE_SECONDS, max(FIRST_WORLD_SECONDS, present / 2))


def world_limit(present: float, took: Sequence[float], alone: bool) -> float:
    """The limit of the next worlds in seconds. `present`: that of the last ones; `took`: seconds of each member's part of the
    probes of the last batch, of worlds only those that passed. `alone`: nothing but probes alone was measured so far.

    It rises at once with what is measured and falls by half at most: a batch may have been luckier than the next one.
    """
    if not took:
        return present
    if alone:
        return min(LONGEST_SECONDS, max(FIRST_WORLD_SECONDS, ALONE_FACTOR * median(took)))
    return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, present / 2, WORLD_FACTOR * max(took)))
