"""T(task, workers): the achieved FLOP/s of a task at every size, from what was measured first, and else from a model."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from recovery.planning.layouts import Fit, Hardware, Layout, Measured, Transformer, best_layout, fitted
from recovery.planning.tasks import PlanError

__all__ = ["Point", "Sizes", "Source", "Throughput", "throughput"]


class Source(StrEnum):
    """Where a value comes from, the most to be believed first."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    MODELLED = "modelled"
    PROPORTIONAL = "proportional"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True)
class Point:
    """A measured step time at a number of units (nodes). `layout`: under which layout, None where it is not known."""

    units: int
    step_seconds: float
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if self.units < 1 or not 0 < self.step_seconds < float("inf"):
            raise PlanError(f"a measured point has at least one unit and a step time above 0: {self.units}, {self.step_seconds}")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that a task may have, in units: between the two, in whole multiples of `step`."""

    minimum: int = 1
    maximum: int | None = None
    step: int = 1

    def allows(self, units: int) -> bool:
        return self.minimum <= units and (self.maximum is None or units <= self.maximum) and units % self.step == 0


@dataclass(frozen=True, slots=True)
class Throughput:
    """FLOP/s by size from 0 units on, and where each value comes from. `layouts`: the model's best at the sizes it judged."""

    values: tuple[float, ...]
    sources: tuple[Source, ...]
    layouts: Mapping[int, Layout]
    fit: Fit | None = None


def throughput(
    points: Sequence[Point],
    flops_per_step: float | None,
    sizes: Sizes,
    up_to: int,
    model: Transformer | None = None,
    hardware: Hardware = Hardware(),
    allowed: Sequence[tuple[int, int]] | None = None,
) -> Throughput:
    """T at 0..up_to units of `hardware.gpus_per_node` GPUs.

    A measured size has its measured value (of several points at one size, the fastest). Elsewhere the shape is that of the fitted
    model, bent to pass through the measured points: between two of them their ratio to the shape is interpolated, beyond the last
    it stays. Without a model the shape is proportional to the size. A size that `sizes` rules out is infeasible however it was
    measured. Raises PlanError where neither points nor a model say anything.
    """
    if model is None and not points:
        raise PlanError("neither a measured step time nor a model: nothing says how fast it is")
    flops = model.flops if flops_per_step is None and model is not None else flops_per_step
    if flops is None or flops <= 0:
        raise PlanError("flops_per_step is needed where there is no model")
    measured: dict[int, float] = {}
    for point in points:
        measured[point.units] = max(measured.get(point.units, 0.0), flops / point.step_seconds)
    shape, layouts, fit = _shape(points, flops, sizes, up_to, model, hardware, allowed)
    values, sources = [0.0], [Source.INFEASIBLE]
    for units in range(1, up_to + 1):
        if not sizes.allows(units) or (shape.get(units) is None and units not in measured):
            value, source = 0.0, Source.INFEASIBLE
        elif units in measured:
            value, source = measured[units], Source.MEASURED
        else:
            ratio, between = _ratio(units, measured, shape)
            value = shape[units] * ratio
            source = Source.INTERPOLATED if between else Source.MODELLED if model is not None else Source.PROPORTIONAL
        values.append(value)
        sources.append(source)
    return Throughput(tuple(values), tuple(sources), layouts, fit)


def _shape(
    points: Sequence[Point],
    flops: float,
    sizes: Sizes,
    up_to: int,
    model: Transformer | None,
    hardware: Hardware,
    allowed: Sequence[tuple[int, int]] | None,
) -> tuple[dict[int, float], dict[int, Layout], Fit | None]:
    """FLOP/s by feasible size without regard to single measurements; the layouts and the fit behind them."""
    reach = max([up_to, *(point.units for point in points)])
    wanted = [units for units in range(1, reach + 1) if sizes.allows(units)]
    if model is None:
        return {units: float(units) for units in range(1, reach + 1)}, {}, None
    per_node = hardware.gpus_per_node
    fit = fitted(
        model, hardware, [Measured(point.units * per_node, point.step_seconds, point.layout) for point in points], Fit(), allowed
    )
    shape, layouts = {}, {}
    for units in {*wanted, *(point.units for point in points)}:
        found = best_layout(model, units * per_node, hardware, fit, allowed)
        if found is not None:
            layouts[units] = found[0]
            shape[units] = flops / found[1]
    return shape, layouts, fit


def _ratio(units: int, measured: Mapping[int, float], shape: Mapping[int, float]) -> tuple[float, bool]:
    """Measured over shape at this size, and whether it lies between two measured sizes."""
    known = sorted(size for size in measured if shape.get(size))
    if not known:
        return 1.0, False
    at = bisect_left(known, units)
    if at == 0 or at == len(known):
        end = known[0] if at == 0 else known[-1]
        return measured[end] / shape[end], False
    low, high = known[at - 1], known[at]
    share = (units - low) / (high - low)
    return (1 - share) * measured[low] / shape[low] + share * measured[high] / shape[high], True
