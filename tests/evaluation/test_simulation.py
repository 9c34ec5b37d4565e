"""Decoupling in simulated time."""

import math
import random
import statistics

import pytest

from evaluation.planner import Site
from evaluation.simulation import Decoupling, Storage, simulate
from evaluation.workload import Dataset, Slot

INLINE = Decoupling(loading=False, metrics=False, planned=False)


def drawn(seed: int, count: int = 63) -> list[Dataset]:
    """Datasets of minutes, one in five with a verification about as long as its generation."""
    chance = random.Random(seed)
    return [
        Dataset(
            f"d{index}",
            samples=200,
            gpu_seconds=(gpu := chance.lognormvariate(math.log(120), 1.0)),
            cpu_seconds=gpu * chance.uniform(0.2, 1.5) if chance.random() < 0.2 else chance.uniform(1, 5),
        )
        for index in range(count)
    ]


def site_of(nodes: int) -> Site:
    return Site(tuple(Slot(f"n{node}", index) for node in range(nodes) for index in range(8)), 16 * nodes, startup_seconds=20)


def test_loads_of_one_node_share_its_link():
    site = Site((Slot("a", 0), Slot("a", 1), Slot("b", 0)), 1)
    outcome = simulate(site, [Dataset(f"d{index}", 1, 10.0) for index in range(3)], Storage(100.0, 10.0), INLINE)
    loaded = {str(span.slot): span.loaded for span in outcome.trials}
    assert loaded == {"a:0": pytest.approx(20), "a:1": pytest.approx(20), "b:0": pytest.approx(10)}
    assert outcome.makespan == pytest.approx(30)
    assert outcome.held_idle == pytest.approx(50)


def test_inline_metrics_hold_the_slot_and_decoupled_ones_do_not():
    site = Site((Slot("a", 0),), 1)
    datasets = [Dataset("d0", 1, 10.0, 5.0), Dataset("d1", 1, 10.0, 5.0)]
    assert simulate(site, datasets, Storage(0.0), INLINE).makespan == pytest.approx(30)
    apart = Decoupling(loading=False, metrics=True, planned=False)
    assert simulate(site, datasets, Storage(0.0), apart).makespan == pytest.approx(25)


@pytest.mark.parametrize(("nodes", "least"), [(1, 1.3), (4, 1.8)])
def test_sixty_three_datasets_end_sooner_by_the_factors_of_the_paper(nodes, least):
    ratios = []
    for seed in range(3):
        datasets = drawn(seed)
        inline, apart = (simulate(site_of(nodes), datasets, Storage(14e9), how).makespan for how in (INLINE, Decoupling()))
        ratios.append(inline / apart)
    assert statistics.median(ratios) >= least
