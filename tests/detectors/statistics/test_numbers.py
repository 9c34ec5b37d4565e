"""Slow-downs, stragglers, losses, fields and shares of time."""

from __future__ import annotations

import math
import random

from detectors.statistics.judgement import Finding, judgement_signal
from detectors.statistics.loss import find_loss_spike, judge_finite, judge_loss_spike, judge_vanished
from detectors.statistics.pace import judge_progress, judge_slow_down, judge_stragglers
from detectors.statistics.usage import judge_under_use
from rules.signal import Role, Trust
from rules.taxonomy import load_taxonomy


def noisy(count: int, mean: float, noise: float, seed: int = 1) -> list[float]:
    source = random.Random(seed)
    return [mean * math.exp(source.gauss(0, noise)) for _ in range(count)]


def curve(count: int, seed: int = 1, noise: float = 0.05) -> list[tuple[int, float]]:
    """A loss as real ones are: it falls by a power law, with noise."""
    source = random.Random(seed)
    return [(step, 10 * (step + 10) ** -0.3 * math.exp(source.gauss(0, noise))) for step in range(count)]


def test_a_lasting_slow_down_is_found_where_it_began() -> None:
    found = judge_slow_down(noisy(40, 1.0, 0.05) + noisy(12, 1.5, 0.05))
    assert found is not None and found.finding is Finding.SLOW_DOWN and "since 12 steps" in found.why


def test_single_slow_steps_and_noise_are_no_slow_down() -> None:
    steps = noisy(60, 1.0, 0.08)
    steps[20] = steps[45] = 9.0
    assert judge_slow_down(steps) is None
    assert judge_slow_down([1.0] * 10) is None, "too few to say"


def test_clean_steps_are_never_a_slow_down() -> None:
    steps = noisy(10_000, 0.2, 0.1)
    assert not any(judge_slow_down(steps[at : at + 64]) for at in range(0, len(steps) - 64, 16))


def test_a_rank_at_one_and_a_half_times_is_named_and_no_other() -> None:
    windows = [{rank: (1.5 if rank == 2 else 1.0) + 0.01 * rank for rank in range(4)}] * 3
    (found,) = judge_stragglers(windows)
    assert found.rank == 2


def test_a_straggler_is_one_only_when_it_persists() -> None:
    slow, even = {0: 1.0, 1: 1.6, 2: 1.0}, {0: 1.0, 1: 1.0, 2: 1.0}
    assert judge_stragglers([slow, even, slow]) == ()
    assert judge_stragglers([slow, slow]) == ()
    assert [found.rank for found in judge_stragglers([even, slow, slow, slow])] == [1]


def test_the_slower_of_two_ranks_is_the_straggler() -> None:
    assert [found.rank for found in judge_stragglers([{0: 1.0, 1: 1.5}] * 3)] == [1]


def test_a_spike_is_found_within_three_steps() -> None:
    losses = [*curve(200)]
    level = losses[-1][1]
    assert judge_loss_spike([*losses, (200, 4 * level)]) is None, "not confirmed yet"
    found = judge_loss_spike([*losses, (200, 4 * level), (201, 3.5 * level)])
    assert found is not None and (found.step, found.began) == (200, 200)


def test_of_a_loss_that_is_told_every_tenth_step_any_step_since_the_last_good_one_may_be_the_bad_one() -> None:
    losses = [(10 * step, loss) for step, loss in curve(200)]
    level = losses[-1][1]
    found = judge_loss_spike([*losses, (2000, 4 * level), (2010, 4 * level)])
    assert found is not None and (found.step, found.began) == (2000, 1991)


def test_clean_losses_give_no_alarm_in_ten_thousand_steps() -> None:
    for seed in range(3):
        losses = curve(10_000, seed, noise=0.15)
        assert not any(judge_loss_spike(losses[max(0, at - 70) : at]) for at in range(1, len(losses)))


def test_losses_below_zero_are_judged_on_their_own_scale() -> None:
    source = random.Random(2)
    losses = [(step, -5.0 + source.gauss(0, 0.1)) for step in range(64)]
    assert judge_loss_spike(losses) is None
    assert judge_loss_spike([*losses, (64, 3.0), (65, 4.0)]) is not None


def test_nan_and_infinity_are_named_with_their_step_and_the_taxonomys_reason() -> None:
    found = judge_finite({"loss": (7, 2.0), "grad_norm": (7, math.nan)}, rank=3)
    assert found is not None and (found.rank, found.step) == (3, 7) and "grad_norm is nan at step 7" in found.why
    signal = judgement_signal(found, 1.0, Trust.JOB, "n1")
    assert signal.reason == "nan_loss" and signal.reason in load_taxonomy() and signal.role is Role.ROOT
    assert judge_finite({"loss": (1, 1.0)}) is None


def test_a_field_that_stops_coming_is_missed_after_its_own_interval() -> None:
    every_step, every_hundred = list(range(50)), list(range(0, 500, 100))
    assert judge_vanished({"loss": every_step}, 51) == ()
    (found,) = judge_vanished({"loss": every_step}, 53)
    assert found.finding is Finding.VANISHED_FIELD and found.step == 49
    assert judge_vanished({"eval": every_hundred}, 590) == ()
    assert len(judge_vanished({"eval": every_hundred}, 650)) == 1


def test_attempts_that_end_where_the_last_one_ended_are_no_progress() -> None:
    assert judge_progress([10, 40]) is None
    assert judge_progress([10, 40, 90]) is None
    found = judge_progress([40, 40, 40])
    assert found is not None and found.step == 40
    assert judge_progress([40, 12, 40]) is not None
    assert judge_progress([40, 40, 41]) is None


def test_the_section_that_takes_most_beyond_its_share_comes_first() -> None:
    found = judge_under_use({"data": 40.0, "checkpoint": 15.0, "step": 45.0}, 100.0)
    assert [item.holding_back for item in found] == ["data", "checkpoint"]
    assert judgement_signal(found[0], 1.0, Trust.JOB).reason == "data_loading_bottleneck"
    assert judge_under_use({"data": 1.0, "step": 99.0}, 100.0) == ()
    assert judge_under_use({"data": 9.0}, 10.0) == (), "a window too short to judge"


def test_an_idle_gpu_that_nothing_explains_has_too_little_to_do() -> None:
    (found,) = judge_under_use({"step": 100.0}, 100.0, gpu_utilisation=0.3)
    assert found.holding_back == "batch size"


def test_the_place_is_found_from_which_the_loss_is_up_to_the_end() -> None:
    healthy = [(step, 2.0 + 0.01 * (step % 5)) for step in range(100)]
    onset, judgement = find_loss_spike([*healthy, *((step, 6.0) for step in range(100, 160))]) or (0, None)
    assert onset == 100 and judgement is not None and judgement.finding is Finding.LOSS_SPIKE
    assert find_loss_spike([*healthy, *((step, 6.0) for step in range(100, 160)), (160, 2.1)]) is None
    assert find_loss_spike([*healthy, (100, 6.0), (101, 6.0)]) is None
    assert find_loss_spike(healthy[:10]) is None
