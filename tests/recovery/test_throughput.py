"""What a task is worth at each size: measured first, interpolated, modelled; infeasible stays infeasible."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.planning.layouts import (
    Fit,
    Hardware,
    Layout,
    Measured,
    Transformer,
    best_layout,
    fitted,
    iteration_seconds,
    memory_bytes,
)
from recovery.planning.tasks import PlanError
from recovery.planning.throughput import Point, Sizes, Source, throughput

GPT_7B = Transformer(layers=32, hidden=4096, heads=32, sequence=2048, vocabulary=51_200, global_batch=1024)
GPT_175B = Transformer(layers=96, hidden=12_288, heads=96, sequence=2048, vocabulary=51_200, global_batch=1536)
NODE = Hardware()


def test_the_model_has_the_parameters_that_its_name_says() -> None:
    assert GPT_175B.parameters == pytest.approx(175e9, rel=0.01)
    assert GPT_7B.parameters == pytest.approx(6.7e9, rel=0.02)


def test_a_large_model_does_not_fit_on_few_gpus_and_splits_layers_over_many() -> None:
    assert best_layout(GPT_175B, 16, NODE) is None
    found = best_layout(GPT_175B, 128, NODE)
    assert found is not None and found[0].pipeline > 1
    assert memory_bytes(GPT_175B, found[0]) <= 0.9 * NODE.memory_bytes


def test_more_nodes_may_be_worse() -> None:
    curve = throughput((), None, Sizes(), 16, GPT_7B)
    assert any(curve.values[units + 1] < curve.values[units] for units in range(1, 16)), curve.values
    assert curve.sources[7] is Source.INFEASIBLE  # 56 GPUs do not divide a batch of 1024


def test_the_fit_finds_what_the_points_were_made_with() -> None:
    truth = Fit(mfu=0.38, exposed=0.8)
    points = []
    for gpus in (16, 64, 128, 256):
        layout = best_layout(GPT_7B, gpus, NODE, truth)
        assert layout is not None
        points.append(Measured(gpus, iteration_seconds(GPT_7B, layout[0], NODE, truth), layout[0]))
    found = fitted(GPT_7B, NODE, points)
    assert found.mfu == pytest.approx(0.38, rel=1e-6)
    assert found.exposed == pytest.approx(0.8, rel=1e-6)


def test_one_point_fits_the_efficiency_alone() -> None:
    layout = Layout(1, 1, 64, 1)
    seconds = 2 * iteration_seconds(GPT_7B, layout, NODE, Fit())
    found = fitted(GPT_7B, NODE, [Measured(64, seconds, layout)])
    assert found.exposed == Fit().exposed and found.mfu < Fit().mfu


def test_a_measured_size_has_its_measured_value_and_bends_its_neighbours() -> None:
    modelled = throughput((), None, Sizes(), 16, GPT_7B)
    slow = GPT_7B.flops / modelled.values[8] * 1.25
    curve = throughput([Point(8, slow)], None, Sizes(), 16, GPT_7B)
    assert curve.values[8] == pytest.approx(modelled.values[8] / 1.25)
    assert curve.sources[8] is Source.MEASURED and curve.sources[4] is Source.MODELLED
    assert curve.values[4] < modelled.values[4]


def test_between_two_measured_sizes_it_is_interpolated() -> None:
    curve = throughput([Point(2, 1.0), Point(4, 0.6)], 1e15, Sizes(), 6)
    assert curve.values[2] == 1e15 and curve.values[4] == pytest.approx(1e15 / 0.6)
    assert curve.sources[3] is Source.INTERPOLATED
    # 0.5 and 0.4167 of a step a second and node: 0.4583 between them.
    assert curve.values[3] == pytest.approx(3 * 1e15 * (0.5 + 1 / 2.4) / 2)
    assert curve.sources[5] is Source.PROPORTIONAL and curve.values[6] == pytest.approx(1.5 * curve.values[4])


def test_sizes_that_the_owner_rules_out_are_infeasible_however_they_were_measured() -> None:
    curve = throughput([Point(3, 1.0)], 1e15, Sizes(minimum=2, maximum=6, step=2), 8)
    feasible = [units for units, value in enumerate(curve.values) if value > 0]
    assert feasible == [2, 4, 6]


def test_nothing_known_is_said() -> None:
    with pytest.raises(PlanError, match="nothing says how fast"):
        throughput((), 1e15, Sizes(), 4)
    with pytest.raises(PlanError, match="flops_per_step"):
        throughput([Point(1, 1.0)], None, Sizes(), 4)
    with pytest.raises(PlanError, match="step time above 0"):
        Point(1, 0.0)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 128), st.sampled_from([GPT_7B, GPT_175B]))
def test_a_layout_uses_every_gpu_divides_the_batch_and_fits(gpus: int, model: Transformer) -> None:
    found = best_layout(model, gpus, NODE)
    if found is not None:
        layout, seconds = found
        assert layout.gpus == gpus and model.global_batch % (layout.data * layout.micro_batch) == 0
        assert memory_bytes(model, layout) <= 0.9 * NODE.memory_bytes
        assert model.flops / seconds <= gpus * NODE.peak_flops
