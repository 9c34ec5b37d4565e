"""The pace of a job: slow-downs, ranks that hold the others up, and runs that get nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from detectors.statistics.judgement import Finding, Judgement

__all__ = ["judge_progress", "judge_slow_down", "judge_stragglers"]

# 1.4826 x the median absolute deviation estimates the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826


def spread(values: Sequence[float], centre: float) -> float:
    """A robust standard deviation around `centre`."""
    return MAD_TO_SIGMA * median(abs(value - centre) for value in values)


def judge_slow_down(
    step_seconds: Sequence[float], *, least_factor: float = 1.2, sigmas: float = 5.0, least_after: int = 8
) -> Judgement | None:
    """A change point in a window of step times (seconds, oldest first) after which steps take longer, and still do.

    The split is the one with the least sum of absolute deviations from the medians of its two sides; it counts where the second
    median is above the first by `least_factor` and by `sigmas` robust deviations. Single outliers move no median.
    """
    count = len(step_seconds)
    if count < 2 * least_after:
        return None
    best: tuple[float, int] | None = None
    for split in range(least_after, count - least_after + 1):
        before, after = step_seconds[:split], step_seconds[split:]
        low, high = median(before), median(after)
        cost = sum(abs(value - low) for value in before) + sum(abs(value - high) for value in after)
        if best is None or cost < best[0]:
            best = cost, split
    assert best is not None
    split = best[1]
    before, after = step_seconds[:split], step_seconds[split:]
    low, high = median(before), median(after)
    limit = max(least_factor * low, low + sigmas * spread(before, low))
    if high <= limit:
        return None
    why = f"steps take {high:.3g} s since {count - split} steps, {low:.3g} s before: {high / low:.2f} x (limit {limit:.3g} s)"
    return Judgement(Finding.SLOW_DOWN, why, high, limit)


def judge_stragglers(
    windows: Sequence[Mapping[int, float]], *, factor: float = 1.3, persistent: int = 3, sigmas: float = 4.0
) -> tuple[Judgement, ...]:
    """Ranks whose own seconds a step (without waiting for others) are far above the median of their peers in each of the last
    `persistent` windows. `windows`: rank -> mean seconds a step, oldest first; one with fewer than two ranks says nothing."""
    recent = windows[-persistent:]
    if len(recent) < persistent or any(len(window) < 2 for window in recent):
        return ()
    found = []
    for rank in sorted(set.intersection(*(set(window) for window in recent))):
        limits = []
        for window in recent:
            peers = [seconds for other, seconds in window.items() if other != rank]
            middle = median(peers)
            limits.append(max(factor * middle, middle + sigmas * spread(peers, middle)))
        if all(window[rank] > limit for window, limit in zip(recent, limits, strict=True)):
            value, limit = recent[-1][rank], limits[-1]
            why = f"rank {rank} needs {value:.3g} s a step by itself in {persistent} windows; its peers' limit is {limit:.3g} s"
            found.append(Judgement(Finding.STRAGGLER, why, value, limit, rank))
    return tuple(found)


def judge_progress(last_steps: Sequence[int], *, attempts: int = 3) -> Judgement | None:
    """A job whose last `attempts` attempts got no further than the ones before. `last_steps`: the last step of each attempt,
    oldest first. Restarting it again would be one more round of the same (44 of them: Megatron-LM#5281)."""
    if len(last_steps) < attempts:
        return None
    recent = last_steps[-attempts:]
    best_before = max(last_steps[: -attempts + 1])
    if max(recent[1:]) > best_before:
        return None
    why = f"the last {attempts} attempts ended at steps {', '.join(map(str, recent))}: none got past step {best_before}"
    return Judgement(Finding.NO_PROGRESS, why, max(recent), best_before, step=best_before)
