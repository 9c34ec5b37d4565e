"""Numbers that a training loop reports: spikes, values that are not numbers, and fields that stop coming."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from statistics import median

from detectors.statistics.judgement import Finding, Judgement
from detectors.statistics.pace import spread

__all__ = ["find_loss_spike", "judge_finite", "judge_loss_spike", "judge_vanished"]


def judge_finite(values: Mapping[str, tuple[int, float]], rank: int | None = None) -> Judgement | None:
    """The first reported value that is NaN or infinite. `values`: name -> (step, value)."""
    for name, (step, value) in values.items():
        if not math.isfinite(value):
            return Judgement(Finding.NOT_FINITE, f"{name} is {value} at step {step}", value, math.inf, rank, step)
    return None


def judge_loss_spike(
    losses: Sequence[tuple[int, float]],
    *,
    confirm: int = 2,
    window: int = 64,
    least_window: int = 16,
    sigmas: float = 8.0,
    least_factor: float = 1.5,
) -> Judgement | None:
    """A loss that jumped and stayed up for `confirm` steps. `losses`: (step, loss), oldest first, one a step.

    Compared on a log scale with the `window` steps before (their median and robust deviation), since a loss falls by factors; a
    loss that is not positive everywhere is compared as it is. Values that are not finite belong to `judge_finite`.
    """
    finite = [(step, loss) for step, loss in losses if math.isfinite(loss)]
    if len(finite) < least_window + confirm:
        return None
    before = [loss for _, loss in finite[:-confirm][-window:]]
    now = finite[-confirm:]
    positive = min(min(before), min(loss for _, loss in now)) > 0
    scaled = [math.log(loss) for loss in before] if positive else before
    middle = median(scaled)
    deviation = sigmas * spread(scaled, middle)
    limit = middle + max(deviation, math.log(least_factor) if positive else 0.5 * abs(middle))
    if any((math.log(loss) if positive else loss) <= limit for _, loss in now):
        return None
    usual, threshold = (math.exp(middle), math.exp(limit)) if positive else (middle, limit)
    step, loss = now[0]
    why = f"the loss jumped to {loss:.4g} at step {step} for {confirm} steps; {usual:.4g} before, limit {threshold:.4g}"
    # Of the steps between two that were reported nothing is known: the first of them may have been the bad one.
    return Judgement(Finding.LOSS_SPIKE, why, loss, threshold, step=step, since=finite[-confirm - 1][0] + 1)


def find_loss_spike(
    losses: Sequence[tuple[int, float]], *, confirm: int = 3, window: int = 32, least_window: int = 16, least_factor: float = 1.5
) -> tuple[int, Judgement] | None:
    """The first place in `losses` (step, loss; oldest first, every one finite) from which the loss is up to the end.

    It is one where `judge_loss_spike` sees a jump and no later loss comes back under its limit.
    """
    lowest_to_end = list(accumulate((loss for _, loss in reversed(losses)), min))[::-1]
    for onset in range(least_window, len(losses) - confirm + 1):
        before = losses[max(0, onset - window) : onset]
        # Nearly every place of a healthy run ends here.
        if lowest_to_end[onset] <= least_factor * min(loss for _, loss in before) and lowest_to_end[onset] > 0:
            continue
        judgement = judge_loss_spike(
            [*before, *losses[onset : onset + confirm]],
            confirm=confirm,
            window=window,
            least_window=least_window,
            least_factor=least_factor,
        )
        if judgement is not None and lowest_to_end[onset] > judgement.limit:
            return onset, judgement
    return None


def judge_vanished(
    reported: Mapping[str, Sequence[int]], step: int, *, steps: int = 3, least_reports: int = 5
) -> tuple[Judgement, ...]:
    """Fields that used to come and do not any more. `reported`: name -> the steps at which it came, oldest first.

    A field is missed after `steps` steps, or twice its usual interval where that is longer (a value logged every 100 steps).
    """
    found = []
    for name, at in reported.items():
        if len(at) < least_reports:
            continue
        interval = median(later - earlier for earlier, later in pairwise(at))
        limit = max(float(steps), 2 * interval)
        if step - at[-1] > limit:
            why = f"{name} was last reported at step {at[-1]}, {step - at[-1]} steps ago; it used to come every {interval:g}"
            found.append(Judgement(Finding.VANISHED_FIELD, why, step - at[-1], limit, step=at[-1]))
    return tuple(found)
