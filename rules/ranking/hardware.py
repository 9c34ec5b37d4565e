"""What the kernel's and the driver's lines tell about one GPU when they are laid side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rules.diagnosis import FaultDomain
from rules.ranking.inference import Inference
from rules.ranking.observation import Observation

__all__ = ["infer_hardware"]

APPLICATION_FIRST = "cuda_error_unattributed"


def infer_hardware(observations: Sequence[Observation]) -> list[Inference]:
    """A GPU whose same unit faults under different processes is broken, though each fault alone would be the application's."""
    faults: dict[tuple[str, str], list[Observation]] = defaultdict(list)
    for item in observations:
        gpu, unit = item.capture("gpu"), item.capture("unit")
        if item.reason == APPLICATION_FIRST and gpu and unit and item.capture("pid"):
            faults[gpu, unit].append(item)
    inferences = []
    for (gpu, unit), items in faults.items():
        processes = {item.capture("pid") for item in items}
        if len(processes) > 1:
            why = f"unit {unit} of GPU {gpu} faulted under {len(processes)} different processes"
            domain = FaultDomain(node=items[0].capture("node") or items[0].line.node, gpu=gpu)
            inferences.append(
                Inference("gpu_hardware_fault_suspected", 80, tuple(items), why, domain, frozenset((APPLICATION_FIRST,)))
            )
    return inferences
