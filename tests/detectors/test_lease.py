"""Leases: who is silent, when the judge distrusts itself, and what it takes to call a node lost."""

from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.lease import (
    Judge,
    Lease,
    Silence,
    Witness,
    WitnessKind,
    judge_loss,
    next_look,
    review_leases,
    silence_signal,
)
from rules.signal import Role, Trust
from rules.taxonomy import load_taxonomy

TTL = 2.5


def fleet(count: int, renewed_at: float = 100.0) -> list[Lease]:
    return [Lease(f"n{number:04}", renewed_at, TTL) for number in range(count)]


def names(silences: tuple[Silence, ...]) -> list[str]:
    return [silence.node for silence in silences]


def test_a_lease_that_ran_out_makes_its_node_silent() -> None:
    leases = [*fleet(9, 109.5), Lease("gone", 107.0, TTL), Lease("late", 107.6, TTL)]
    review = review_leases(leases, Judge(0.0, 110.0))
    assert names(review.silent) == ["gone"] and not review.suspects_itself
    assert "3.0 s" in review.silent[0].why


def test_a_lease_that_was_given_back_is_not_missed() -> None:
    assert review_leases([Lease("n", 1.0, TTL, ended=True)], Judge(0.0, 100.0)).silent == ()


def test_after_a_start_every_lease_gets_a_full_time_to_live() -> None:
    leases = [Lease("gone", 10.0, TTL)]
    assert review_leases(leases, Judge(100.0, 102.4)).silent == ()
    assert names(review_leases(leases, Judge(100.0, 102.6)).silent) == ["gone"]


def test_a_pause_and_a_clock_that_jumps_either_way_are_starts() -> None:
    judge = Judge(0.0, 100.0)
    assert next_look(judge, 100.5).since == 0.0
    for now in (110.0, 3700.0, 40.0, -3500.0):
        assert next_look(judge, now) == Judge(now, now)


def test_more_leases_than_machines_fail_at_once_are_a_matter_of_the_judge() -> None:
    few = [*fleet(100, 109.5), *(Lease(f"gone{number}", 105.0 + 0.2 * number, TTL) for number in range(5))]
    assert len(review_leases(few, Judge(0.0, 110.0)).silent) == 5
    many = [*fleet(100, 109.5), *(Lease(f"gone{number}", 105.0 + 0.2 * number, TTL) for number in range(6))]
    review = review_leases(many, Judge(0.0, 110.0))
    assert review.silent == () and len(review.unjudged) == 6 and "6 of 106" in review.why


def test_one_silence_long_before_a_mass_of_them_is_still_judged() -> None:
    leases = [*fleet(20, 105.0), Lease("alone", 50.0, TTL)]
    review = review_leases(leases, Judge(0.0, 110.0))
    assert names(review.silent) == ["alone"] and len(review.unjudged) == 20


def test_silence_alone_is_never_the_loss_of_a_node() -> None:
    silence = Silence("n1", 100.0, 3.0, "n1 is silent")
    assert judge_loss(silence, []) is None
    assert judge_loss(silence, [Witness(WitnessKind.FAILED_PROBE, "n2", "n3", 101.0)]) is None, "another node"
    assert judge_loss(silence, [Witness(WitnessKind.FAILED_COLLECTIVE, "n1", "n1", 101.0)]) is None, "itself"
    assert judge_loss(silence, [Witness(WitnessKind.SCHEDULER, "n1", "slurm", 20.0)]) is None, "an old story"
    signal = silence_signal(silence)
    assert (signal.role, signal.line.trust) == (Role.CONTEXT, Trust.CLUSTER)
    assert load_taxonomy()[signal.reason].severity != "SEV1"


def test_with_an_independent_witness_the_node_is_lost() -> None:
    silence = Silence("n1", 100.0, 3.0, "n1 is silent")
    loss = judge_loss(silence, [Witness(WitnessKind.FAILED_COLLECTIVE, "n1", "n2", 99.0)])
    assert loss is not None and "a peer's collective failed (n2)" in loss.why
    signal = silence_signal(silence, loss)
    assert signal.role is Role.ROOT and load_taxonomy()[signal.reason].severity == "SEV1"


@settings(max_examples=25, deadline=None)
@given(
    away_from=st.floats(5, 30),
    away_for=st.floats(0, 60),
    jump=st.sampled_from([0.0, 3600.0, -3600.0]),
    seed=st.integers(0, 1000),
)
def test_a_service_that_was_away_or_whose_clock_was_set_never_judges_a_healthy_fleet(
    away_from: float, away_for: float, jump: float, seed: int
) -> None:
    """200 agents renew every second; the service is away for a while, and its clock is moved when it comes back."""
    phases = [random.Random(seed + number).random() for number in range(200)]
    received, judge, back = [0.0] * len(phases), Judge(0.0, 0.0), away_from + away_for
    for tick in range(1, int(2 * (back + 10))):
        time = tick / 2
        if away_from <= time < back:
            continue
        clock = jump if time >= back else 0.0
        for number, phase in enumerate(phases):
            renewed = math.floor(time - phase) + phase
            if renewed > 0 and not away_from <= renewed < back:
                received[number] = renewed + (jump if renewed >= back else 0.0)
        judge = next_look(judge, time + clock)
        review = review_leases([Lease(f"n{number}", at, TTL) for number, at in enumerate(received)], judge)
        assert review.silent == () and not review.suspects_itself
