"""Tasks to simulate: GPT-3 sizes, their throughput by nodes from the planner's own model, and the five mixes of six tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from recovery.planning.layouts import Fit, Hardware, Transformer, best_layout
from simulator.parameters import Parameters

__all__ = ["CASES", "Workload", "case", "curve"]

# Layers, hidden size, heads: GPT-3 (arXiv 2005.14165, table 2.1), the sizes that Unicron names (section 7.1).
SHAPES = {"1.3B": (24, 2048, 16), "7B": (32, 4096, 32), "13B": (40, 5120, 40), "70B": (80, 8192, 64)}
SEQUENCE, VOCABULARY = 2048, 51200
RISING = (0.5, 0.8, 1.1, 1.4, 1.7, 2.0)
MIXED = ("1.3B", "1.3B", "1.3B", "7B", "7B", "13B")


@dataclass(frozen=True, slots=True)
class Workload:
    """One task. `throughput[x]`: FLOP/s on x nodes, 0 where it does not fit; `size`: how large its model is, in parameters."""

    name: str
    throughput: tuple[float, ...]
    weight: float = 1.0
    size: float = 1.0

    def worth(self, nodes: int) -> float:
        return self.weight * self.throughput[nodes] if 0 <= nodes < len(self.throughput) else 0.0

    @property
    def least(self) -> int:
        """The smallest size that runs."""
        return next((nodes for nodes, value in enumerate(self.throughput) if value > 0), len(self.throughput))


@cache
def curve(model: str, nodes: int, global_batch: int, mfu: float) -> tuple[float, ...]:
    """T(t,x) for x = 0..nodes: the best layout's, nothing where none fits. More nodes may be worse."""
    layers, hidden, heads = SHAPES[model]
    transformer = Transformer(layers, hidden, heads, SEQUENCE, VOCABULARY, global_batch)
    values = [0.0]
    for count in range(1, nodes + 1):
        found = best_layout(transformer, count * 8, Hardware(), Fit(mfu=mfu))
        values.append(0.0 if found is None else transformer.flops / found[1])
    return tuple(values)


# Same size or mixed, weights equal, rising or falling with size: the patterns of Unicron's figure 10c; the numbers are our own.
CASES = {
    1: ("same size, equal weights", ("7B",) * 6, (1.0,) * 6),
    2: ("same size, weights 0.5 to 2.0", ("7B",) * 6, RISING),
    3: ("mixed sizes, equal weights", MIXED, (1.0,) * 6),
    4: ("mixed sizes, weights rising with size", MIXED, RISING),
    5: ("mixed sizes, weights falling with size", MIXED, RISING[::-1]),
}


def case(number: int, nodes: int, parameters: Parameters, copies: int = 1, tasks: int | None = None) -> list[Workload]:
    """The tasks of a case, `copies` times over; of those only the last `tasks`, the largest, where that is given."""
    _, models, weights = CASES[number]
    batch, mfu = batch_of(parameters["cluster.global_batch"]), parameters["cluster.mfu"]
    found = [
        Workload(f"{model}-{copy}-{index}", curve(model, nodes, batch, round(mfu, 2)), weight, float(model[:-1]))
        for copy in range(copies)
        for index, (model, weight) in enumerate(zip(models, weights, strict=True))
    ]
    return found if tasks is None else found[-tasks:]


def batch_of(value: float) -> int:
    """A power of two, as batches are."""
    return 1 << max(0, round(value).bit_length() - 1)
