"""Under-use: what a job spends its time on beside computing, and which of it holds it back.

After the survey of low GPU utilisation of deep-learning jobs (Gao et al., ICSE 2024): improper batch size 25 %, host-GPU transfer
28 %, checkpointing 16 %, data exchange 7 % of the causes found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from detectors.statistics.judgement import Finding, Judgement

__all__ = ["LIMITS", "Advice", "judge_under_use"]


@dataclass(frozen=True, slots=True)
class Advice:
    """The share of all time that a section may take, and what to do where it takes more."""

    share: float
    advice: str


LIMITS: Mapping[str, Advice] = {
    "data": Advice(0.15, "more loading workers, prefetching, or a faster store for the data"),
    "transfer": Advice(0.15, "pinned memory, asynchronous copies, fewer .item() and .cpu() calls"),
    "checkpoint": Advice(0.10, "asynchronous checkpoints, or fewer of them"),
    "sync": Advice(0.40, "overlap of communication with computing, or a better layout"),
    "evaluation": Advice(0.30, "evaluation elsewhere, or less often"),
}
LEAST_SECONDS = 30.0
# A GPU that is idle while nothing above explains it waits for work that is too small.
LOW_UTILISATION = 0.5


def judge_under_use(
    seconds: Mapping[str, float], total_seconds: float, gpu_utilisation: float | None = None
) -> tuple[Judgement, ...]:
    """What holds the job back, the largest share first. `seconds`: time by section in a window of `total_seconds`;
    `gpu_utilisation`: the mean of the same window, 0 to 1, where it is known. A window under 30 s says nothing."""
    if total_seconds < LEAST_SECONDS:
        return ()
    shares = sorted(((seconds.get(name, 0.0) / total_seconds, name) for name in LIMITS), reverse=True)
    found = []
    for share, name in shares:
        limit = LIMITS[name]
        if share > limit.share:
            why = f"{share:.0%} of the time goes into {name} (limit {limit.share:.0%}): {limit.advice}"
            found.append(Judgement(Finding.UNDER_USE, why, share, limit.share, holding_back=name))
    if not found and gpu_utilisation is not None and gpu_utilisation < LOW_UTILISATION:
        why = f"the GPU is busy {gpu_utilisation:.0%} of the time and no section explains it: try a larger batch"
        found.append(Judgement(Finding.UNDER_USE, why, gpu_utilisation, LOW_UTILISATION, holding_back="batch size"))
    return tuple(found)
