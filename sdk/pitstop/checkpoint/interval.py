"""How often to save: Young's and Daly's optimum from the measured cost of a save and the rate of failures."""

import math
from typing import NamedTuple

__all__ = ["Advice", "advise_interval"]


class Advice(NamedTuple):
    """Save every `seconds`; `lost_share`: the part of the run that saves and recomputation then cost."""

    seconds: float
    lost_share: float
    why: str


def advise_interval(save_seconds: float, mtbf_seconds: float, durable_seconds: float = 0.0) -> Advice:
    """Daly's higher-order estimate (FGCS 22, 2006, eq. 37), which is Young's sqrt(2 C M) for short saves.

    `save_seconds`: what one save stalls the training; `mtbf_seconds`: mean time between failures of the whole job;
    `durable_seconds`: how long a save takes to reach the disk, below which saves would queue up. Raises ValueError for numbers
    that are not positive.
    """
    if not save_seconds > 0 or not mtbf_seconds > 0 or durable_seconds < 0:
        raise ValueError("the cost of a save and the time between failures must be positive")
    ratio = save_seconds / (2 * mtbf_seconds)
    if ratio < 1:
        best = math.sqrt(2 * save_seconds * mtbf_seconds) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_seconds
    else:
        best = mtbf_seconds
    seconds = max(best, durable_seconds)
    lost = min(1.0, save_seconds / seconds + seconds / (2 * mtbf_seconds))
    why = "a save stalls %.3g s and a failure comes every %.3g s: every %.3g s" % (save_seconds, mtbf_seconds, seconds)
    if seconds > best:
        why += " (%.3g s would be best, but a save needs %.3g s to be durable)" % (best, durable_seconds)
    return Advice(seconds, lost, why)
