"""Where to go back to when training went wrong, and which batches to leave out after it. Pure.

Acme (NSDI'24) meets a loss spike by going back to an earlier healthy checkpoint and skipping the batches that followed it. Steps
and batches are counted alike: a checkpoint of step s has seen the batches before s and goes on with batch s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MAX_ROLLBACKS", "Checkpoint", "Rollback", "plan_rollback"]

# What two rollbacks did not heal is not in those batches.
MAX_ROLLBACKS = 2
# A loss is known after its step: the batch before it may have spoilt the parameters that it was computed with.
BLAMED_BEFORE = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint that the job has reported; without a path the job knows it by its step."""

    step: int
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Rollback:
    """`checkpoint` None: there is nothing to go back to, `why` says what is missing: a person is to be asked.

    `skip_batches`: half-open intervals of batch indices that are left out from now on.
    """

    checkpoint: Checkpoint | None
    skip_batches: tuple[tuple[int, int], ...]
    why: str


def plan_rollback(
    checkpoints: Sequence[Checkpoint], bad_since: int, last_step: int | None, spent: int, limit: int = MAX_ROLLBACKS
) -> Rollback:
    """Back to the newest checkpoint that no suspect batch has touched, past every batch since.

    `bad_since`: the first step whose numbers were wrong; `last_step`: the last step that ran, None where it is not known;
    `spent`: rollbacks for this cause so far. Each one goes one healthy checkpoint further back and blames twice as many batches
    before the spike, since what the last one left in did not stay healthy.
    """
    if spent >= limit:
        return Rollback(None, (), f"{spent} rollbacks did not heal it: the batches are not what is wrong")
    blamed = max(0, bad_since - BLAMED_BEFORE * 2**spent)
    healthy = sorted({item.step: item for item in checkpoints if item.step <= blamed}.values(), key=lambda item: -item.step)
    if not healthy:
        known = ", ".join(str(item.step) for item in sorted(checkpoints, key=lambda item: item.step)) or "none"
        return Rollback(None, (), f"no checkpoint from before step {blamed} is known (known: {known})")
    checkpoint = healthy[min(spent, len(healthy) - 1)]
    end = max(bad_since, bad_since if last_step is None else last_step) + 1
    where = f"back to step {checkpoint.step}, before the numbers went wrong at step {bad_since}"
    why = f"{where}; batches {blamed} to {end - 1} are skipped"
    return Rollback(checkpoint, ((blamed, end),), why)
