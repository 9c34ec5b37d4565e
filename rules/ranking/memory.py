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
REASONS = frozenset(("gpu_oom", "gpu_oom_fragmentation"))


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


def infer_memory(observations: Sequence[Observation]) -> list[Inference]:
    """Which of the two allocator reasons the sizes support, overruling the rule's own."""
    fragmented = [item for item in observations if item.reason in REASONS and is_fragmented(item)]
    fitting = [item for item in observations if item.reason in REASONS and is_fragmented(item) is False]
    if fragmented:
        why = f"the request fits into free plus cached memory and live use is moderate ({position(fragmented[0].line)})"
        return [Inference("gpu_oom_fragmentation", 80, tuple(fragmented), why, explains=frozenset(("gpu_oom",)))]
    if fitting:
        why = f"live allocations and the request do not fit the device ({position(fitting[0].line)})"
        return [Inference("gpu_oom", 80, tuple(fitting), why, explains=frozenset(("gpu_oom_fragmentation",)))]
    return []
