"""The trial coordinator's plan beside proven optima, and what no plan may do."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import evaluation
from evaluation.planner import Plan, Site, lower_bound, plan_pieces, plan_trials
from evaluation.workload import Dataset, Piece, Slot, cut, missing, total

SLOTS = tuple(Slot("n0", index) for index in range(4))


def check(site: Site, pieces: list[Piece], plan: Plan) -> None:
    """Every piece once, no overlap on a slot or a worker, no verification before its outputs, the makespan is the last end."""
    assert sorted(piece for trial in plan.trials for piece in trial.pieces) == sorted(pieces)
    ends = {piece: end for trial in plan.trials for piece, end in zip(trial.pieces, trial.ends, strict=True)}
    for slot in site.slots:
        mine = sorted((trial for trial in plan.trials if trial.slot == slot), key=lambda trial: trial.start)
        assert all(before.ends[-1] <= after.start + 1e-9 for before, after in pairwise(mine))
        assert not mine or mine[0].start >= site.ready.get(slot, 0.0) - 1e-9
    assert {job.piece for job in plan.verifications} == {piece for piece in pieces if piece.cpu_seconds > 0}
    for worker in range(site.cpu_workers):
        jobs = sorted((job for job in plan.verifications if job.worker == worker), key=lambda job: job.start)
        assert all(before.end <= after.start + 1e-9 for before, after in pairwise(jobs))
    assert all(job.start >= ends[job.piece] - 1e-9 for job in plan.verifications)
    last = max([*ends.values(), *(job.end for job in plan.verifications)], default=0.0)
    assert plan.makespan == pytest.approx(last)
    assert plan.makespan >= plan.bound - 1e-6


def test_small_plans_are_within_five_per_cent_of_the_optimum():
    pytest.importorskip("ortools")
    chance = random.Random(7)
    for _ in range(15):
        site = Site(SLOTS[: chance.choice([2, 3, 4])], chance.choice([1, 2, 3]))
        pieces = [
            Piece(f"d{index}", 0, 1, chance.randint(1, 60), chance.choice([0, 0, chance.randint(1, 80)]))
            for index in range(chance.randint(4, 9))
        ]
        plan = plan_pieces(site, pieces)
        check(site, pieces, plan)
        best = evaluation.optimum(site, pieces)
        assert best >= lower_bound(site, pieces) - 1e-6
        assert plan.makespan <= 1.05 * best


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(0.1, 500), st.floats(0, 500)), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 3),
    st.floats(0, 30),
    st.floats(0, 300),
)
def test_every_sample_is_planned_once_whatever_the_workload(entries, slots, workers, startup, trial_seconds):
    datasets = [Dataset(f"d{index}", *entry) for index, entry in enumerate(entries)]
    site = Site(SLOTS[:slots], workers, startup, trial_seconds, {SLOTS[0]: 17.0})
    plan = plan_trials(site, datasets, steps=20)
    pieces = [piece for trial in plan.trials for piece in trial.pieces]
    check(site, pieces, plan)
    for dataset in datasets:
        spans = sorted(piece.span for piece in pieces if piece.dataset == dataset.name)
        assert spans[0][0] == 0 and spans[-1][1] == dataset.samples
        assert all(before[1] == after[0] for before, after in pairwise(spans))


def test_the_longest_verification_is_generated_first():
    plan = plan_pieces(Site(SLOTS[:1], 1), [Piece("chat", 0, 1, 50, 1), Piece("code", 0, 1, 10, 60)])
    assert [piece.dataset for trial in plan.trials for piece in trial.pieces] == ["code", "chat"]
    assert plan.makespan == pytest.approx(71)


def test_a_long_dataset_is_cut_and_short_ones_share_a_trial():
    datasets = [Dataset("long", 400, 400.0), *(Dataset(f"short{index}", 10, 5.0) for index in range(8))]
    plan = plan_trials(Site(SLOTS, 1, startup_seconds=5), datasets)
    assert sum(piece.dataset == "long" for trial in plan.trials for piece in trial.pieces) > 1
    assert any(len(trial.pieces) > 1 for trial in plan.trials)
    assert plan.makespan < 130


def test_what_cannot_be_split_or_shared_stays_alone():
    datasets = [Dataset("whole", 100, 100.0, splittable=False, runner=""), Dataset("other", 100, 10.0, runner="")]
    plan = plan_trials(Site(SLOTS, 1), datasets)
    assert [(piece.dataset, piece.span) for trial in plan.trials for piece in trial.pieces if piece.dataset == "whole"] == [
        ("whole", (0, 100))
    ]
    assert all(len(trial.pieces) == 1 for trial in plan.trials)


def test_only_what_is_left_of_a_dataset_is_planned():
    dataset = Dataset("d", 10, 10.0)
    pieces = cut([dataset], {"d": missing(10, [0, 1, 5, 99])}, 0.0)
    assert [piece.span for piece in pieces] == [(2, 5), (6, 10)]
    assert total(piece.span for piece in pieces) == 7


def test_a_site_without_slots_is_refused():
    with pytest.raises(ValueError, match="at least one slot"):
        plan_trials(Site((), 1), [Dataset("d", 1, 1.0)])
