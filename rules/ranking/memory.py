"""Arithmetic on accelerator allocations: does the job not fit, is its memory fragmented, or is the number an artefact?

The allocator prints its advice about fragmentation with every error, so the words decide nothing. Sizes do: free plus cached
memory against the request, and live use against capacity.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rules.ranking.inference import Inference
from rules.ranking.observation import Observation, position

__all__ = ["amount", "infer_memory", "is_absurd", "is_fragmented"]

UNITS = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50, "E": 2.0**60}
AMOUNT = re.compile(r"\s*([\d.]+)\s*([KMGTPE]?)(?:i?B(?:ytes)?|bytes)?\s*", re.IGNORECASE)
# No accelerator has this much; a request for it comes from reading garbage.
ABSURD_BYTES = 2.0**50
# Live use under this share of the capacity is moderate.
MODERATE_SHARE = 0.75
# Others hold the device where this process has at most this share of it, and they at least that.
OWN_SHARE, FOREIGN_SHARE = 0.3, 0.5
REASONS = frozenset(("gpu_oom", "gpu_oom_fragmentation", "gpu_busy_leftover_process"))


def amount(text: str | None) -> float | None:
    """Bytes of an amount such as `1.67 GiB`, `91.5 MiB`, `6.48G` or `4770354232`; None where it is none."""
    match = AMOUNT.fullmatch(text) if text else None
    try:
        return float(match[1]) * UNITS[match[2].upper()] if match else None
    except ValueError:
        return None


def is_absurd(requested: float | None) -> bool:
    """Whether a request is the result of garbage sizes rather than a need."""
    return requested is not None and requested >= ABSURD_BYTES


def is_fragmented(item: Observation) -> bool | None:
    """Whether the sizes in the line show fragmentation; None where they do not say.

    Cached memory is `reserved` minus `allocated`, or `cached` where the line gives it apart. Fragmented: the request fits
    into free plus cached memory although live use is moderate; or it fits into what is free but not into the largest block.
    """
    requested, free = amount(item.capture("requested")), amount(item.capture("free"))
    if requested is None:
        return None
    contiguous = amount(item.capture("contiguous"))
    if contiguous is not None and free is not None:
        return contiguous < requested <= free
    allocated, capacity = amount(item.capture("allocated")), amount(item.capture("capacity"))
    reserved, cached = amount(item.capture("reserved")), amount(item.capture("cached"))
    if cached is None and reserved is not None and allocated is not None:
        cached = max(0.0, reserved - allocated)
    if free is None or cached is None or allocated is None or capacity is None:
        return None
    return requested <= free + cached and allocated <= MODERATE_SHARE * capacity


def is_held_by_others(item: Observation) -> bool:
    """Whether the sizes show that most of the device is taken by memory that is not this process's."""
    free, capacity, allocated = (amount(item.capture(name)) for name in ("free", "capacity", "allocated"))
    if free is None or allocated is None or not capacity:
        return False
    own = max(allocated, amount(item.capture("reserved")) or 0.0, allocated + (amount(item.capture("cached")) or 0.0))
    return own <= OWN_SHARE * capacity and capacity - free - own >= FOREIGN_SHARE * capacity


def infer_memory(observations: Sequence[Observation]) -> list[Inference]:
    """Which of the allocator's reasons the sizes support, overruling the rule's own."""
    failed = [item for item in observations if item.reason in REASONS]
    foreign = [item for item in failed if is_held_by_others(item)]
    fragmented = [item for item in failed if item not in foreign and is_fragmented(item)]
    too_large = [item for item in failed if item not in foreign and is_fragmented(item) is False]
    for reason, items, why in (
        ("gpu_busy_leftover_process", foreign, "most of the device is taken by memory that is not this process's"),
        ("gpu_oom_fragmentation", fragmented, "the request fits into free plus cached memory and live use is moderate"),
        ("gpu_oom", too_large, "live allocations and the request do not fit the device"),
    ):
        if items:
            explains = REASONS - {reason}
            return [Inference(reason, 80, tuple(items), f"{why} ({position(items[0].line)})", explains=explains)]
    return []
