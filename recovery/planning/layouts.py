"""How long one iteration of a transformer takes on a number of GPUs: an analytic model over tensor x pipeline x data layouts.

FLOPs of an iteration and the pipeline bubble are those of Megatron-LM (Narayanan et al., SC'21, arXiv 2104.04473, sections 2.2
and 3.1), with full recomputation of activations. It predicts shapes, and is fitted to what was measured; see docs/planning.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from recovery.planning.tasks import PlanError

__all__ = ["Fit", "Hardware", "Layout", "Measured", "Transformer", "best_layout", "fitted", "iteration_seconds", "memory_bytes"]

MICRO_BATCHES = (1, 2, 4, 8)
# Bytes a parameter: weights in half and gradients in single precision on each GPU; the optimizer's are shared over data ranks.
WEIGHT_BYTES, OPTIMIZER_BYTES = 6.0, 12.0
# Kernels' workspaces, the communication library's buffers and fragmentation.
USABLE_MEMORY = 0.9


@dataclass(frozen=True)
class Transformer:
    """A decoder-only model and its global batch in sequences."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    global_batch: int

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "sequence", "vocabulary", "global_batch"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} of a model is at least 1")

    @cached_property
    def flops(self) -> float:
        """FLOPs of one iteration: 96 B s l h^2 (1 + s/6h + V/16lh)."""
        layers, h, s = self.layers, self.hidden, self.sequence
        return 96.0 * self.global_batch * s * layers * h * h * (1 + s / (6 * h) + self.vocabulary / (16 * layers * h))

    @cached_property
    def parameters(self) -> float:
        return (
            12.0 * self.layers * self.hidden**2 * (1 + 13 / (12 * self.hidden)) + (self.vocabulary + self.sequence) * self.hidden
        )


@dataclass(frozen=True, slots=True)
class Hardware:
    """A GPU, the node around it, and the network: FLOP/s at half precision, bytes, bytes a second."""

    gpus_per_node: int = 8
    peak_flops: float = 312e12
    memory_bytes: float = 80e9
    bandwidth_in_node: float = 300e9
    bandwidth_of_node: float = 100e9


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    tensor: int
    pipeline: int
    data: int
    micro_batch: int

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.data

    def replica_nodes(self, hardware: Hardware) -> int:
        """Nodes that one data-parallel replica spans."""
        return max(1, -(-self.tensor * self.pipeline // hardware.gpus_per_node))


@dataclass(frozen=True, slots=True)
class Fit:
    """What is fitted. `mfu`: share of the peak that a GPU reaches while it computes; `exposed`: share of the gradients' reduction
    that computing does not hide; `tensor_loss`: what each doubling of the tensor width costs (not fitted)."""

    mfu: float = 0.45
    exposed: float = 0.5
    tensor_loss: float = 0.04


@dataclass(frozen=True, slots=True)
class Measured:
    """An iteration's time under a layout, None where the layout is not known."""

    gpus: int
    seconds: float
    layout: Layout | None = None


def memory_bytes(model: Transformer, layout: Layout) -> float:
    """Peak memory of a GPU of the first stage: states, inputs of the layers of all micro-batches in flight, one layer at work."""
    of_gpu = model.parameters / (layout.tensor * layout.pipeline)
    states = of_gpu * (WEIGHT_BYTES + OPTIMIZER_BYTES / layout.data)
    tokens = model.sequence * layout.micro_batch
    # 1F1B keeps `pipeline` micro-batches on the first stage, each with the inputs of its layers: together one of each layer.
    inputs = 2.0 * tokens * model.hidden * model.layers
    at_work = tokens * model.hidden * (10 + 24 / layout.tensor) + 5.0 * model.heads * model.sequence * tokens / layout.tensor
    logits = 6.0 * tokens * model.vocabulary / layout.tensor if layout.pipeline == 1 else 0.0
    return states + inputs + at_work + logits


def terms(model: Transformer, layout: Layout, hardware: Hardware, tensor_loss: float) -> tuple[float, float]:
    """Seconds of an iteration as (computing at the peak, gradients' all-reduce): the fit weighs the two."""
    micro_batches = model.global_batch / (layout.data * layout.micro_batch)
    bubble = (micro_batches + layout.pipeline - 1) / micro_batches
    slower = (1 - tensor_loss) ** (layout.tensor.bit_length() - 1)
    # The last stage also computes the logits, worth this many layers (three passes; a layer with recomputation has four).
    logits = 0.75 * model.vocabulary / (12 * model.hidden)
    slowest_stage = (model.layers / layout.pipeline + logits) / ((model.layers + logits) / layout.pipeline)
    computing = model.flops / (layout.gpus * hardware.peak_flops * slower) * bubble * slowest_stage
    gradients = 4.0 * model.parameters / (layout.tensor * layout.pipeline)
    inside = layout.gpus <= hardware.gpus_per_node
    bandwidth = hardware.bandwidth_in_node if inside else hardware.bandwidth_of_node / hardware.gpus_per_node
    reducing = 2.0 * (layout.data - 1) / layout.data * gradients / bandwidth
    return computing, reducing


def iteration_seconds(model: Transformer, layout: Layout, hardware: Hardware, fit: Fit) -> float:
    computing, reducing = terms(model, layout, hardware, fit.tensor_loss)
    return computing / fit.mfu + fit.exposed * reducing


def layouts(model: Transformer, gpus: int, hardware: Hardware) -> Iterator[Layout]:
    """Every layout of exactly `gpus` GPUs that divides the model and its batch and fits into memory."""
    tensor = 1
    while tensor <= min(gpus, hardware.gpus_per_node):
        if model.heads % tensor == 0 and gpus % tensor == 0 and hardware.gpus_per_node % tensor == 0:
            yield from _with_tensor(model, tensor, gpus // tensor, hardware)
        tensor *= 2


def _with_tensor(model: Transformer, tensor: int, groups: int, hardware: Hardware) -> Iterator[Layout]:
    for pipeline in range(1, min(model.layers, groups) + 1):
        if model.layers % pipeline or groups % pipeline:
            continue
        data = groups // pipeline
        for micro_batch in MICRO_BATCHES:
            layout = Layout(tensor, pipeline, data, micro_batch)
            divides = model.global_batch % (data * micro_batch) == 0
            if divides and memory_bytes(model, layout) <= USABLE_MEMORY * hardware.memory_bytes:
                yield layout


def best_layout(
    model: Transformer, gpus: int, hardware: Hardware, fit: Fit = Fit(), allowed: Sequence[tuple[int, int]] | None = None
) -> tuple[Layout, float] | None:
    """The fastest layout and its seconds; None where none is feasible. `allowed`: (tensor, pipeline) pairs, None for any."""
    timed = (
        (iteration_seconds(model, layout, hardware, fit), layout)
        for layout in layouts(model, gpus, hardware)
        if allowed is None or (layout.tensor, layout.pipeline) in allowed
    )
    seconds, layout = min(timed, default=(0.0, None))
    return None if layout is None else (layout, seconds)


def fitted(
    model: Transformer,
    hardware: Hardware,
    points: Sequence[Measured],
    fit: Fit = Fit(),
    allowed: Sequence[tuple[int, int]] | None = None,
) -> Fit:
    """`mfu` and `exposed` of least squared relative error over the points. One point fits `mfu` alone; none leaves `fit`."""
    for _ in range(3):
        # Where a point's layout is not known it is the best one, which the fit itself may change.
        rows = []
        for point in points:
            layout = point.layout
            if layout is None:
                found = best_layout(model, point.gpus, hardware, fit, allowed)
                layout = None if found is None else found[0]
            if layout is not None:
                computing, reducing = terms(model, layout, hardware, fit.tensor_loss)
                rows.append((computing / point.seconds, reducing / point.seconds))
        if not rows:
            return fit
        slope, exposed = _least_squares(rows, fit.exposed)
        again = Fit(1 / slope, exposed, fit.tensor_loss)
        if again == fit:
            break
        fit = again
    return fit


def _least_squares(rows: Sequence[tuple[float, float]], exposed: float) -> tuple[float, float]:
    """(a, b) that minimise sum (a c + b r - 1)^2 with 1 <= a (no more than the peak) and 0 <= b <= 1."""
    cc, cr, rr = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    c, r = sum(row[0] for row in rows), sum(row[1] for row in rows)

    def slope(b: float) -> float:
        return max(1.0, (c - b * cr) / cc)

    if len(rows) == 1 or cc * rr - cr * cr <= 1e-9 * cc * rr:
        return slope(exposed), exposed
    b = min(1.0, max(0.0, (cc * r - cr * c) / (cc * rr - cr * cr)))
    return slope(b), b
