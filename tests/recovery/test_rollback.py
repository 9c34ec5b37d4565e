"""Going back before a loss spike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recovery.decision import Action
from recovery.job_facts import JobFacts
from recovery.policy import Situation, decide
from recovery.rollback import MAX_ROLLBACKS, Checkpoint, plan_rollback
from rules.diagnosis import Diagnosis
from rules.taxonomy import load_taxonomy

KEPT = (Checkpoint(100), Checkpoint(200), Checkpoint(300))


def test_it_goes_to_the_last_checkpoint_before_the_spike_and_skips_what_caused_it() -> None:
    plan = plan_rollback(KEPT, bad_since=250, last_step=254, spent=0)
    assert plan.checkpoint == Checkpoint(200) and plan.skip_batches == ((249, 255),)


def test_a_checkpoint_taken_after_the_blamed_batch_is_not_healthy() -> None:
    assert plan_rollback(KEPT, 300, 301, 0).checkpoint == Checkpoint(200)
    assert plan_rollback(KEPT, 301, 303, 0).checkpoint == Checkpoint(300)


def test_the_second_time_it_goes_further_back_and_blames_more() -> None:
    plan = plan_rollback(KEPT, 250, 254, spent=1)
    assert plan.checkpoint == Checkpoint(100) and plan.skip_batches == ((248, 255),)


def test_after_that_a_person_is_asked() -> None:
    plan = plan_rollback(KEPT, 250, 254, spent=MAX_ROLLBACKS)
    assert plan.checkpoint is None and "not what is wrong" in plan.why
    assert "known: 100, 200, 300" in plan_rollback(KEPT, 50, 55, 0).why


@given(st.lists(st.integers(0, 500), max_size=6), st.integers(0, 500), st.integers(0, 500), st.integers(0, 3))
def test_no_checkpoint_that_saw_a_skipped_batch_is_ever_used(steps: list[int], bad: int, more: int, spent: int) -> None:
    plan = plan_rollback([Checkpoint(step) for step in steps], bad, bad + more, spent)
    if plan.checkpoint is None:
        assert plan.skip_batches == ()
        return
    ((first, end),) = plan.skip_batches
    assert plan.checkpoint.step <= first <= bad < end == bad + more + 1


def spike(spent: int) -> Situation:
    job = JobFacts("gpt", ("n1",), checkpoints=KEPT, last_step=254, bad_since=250)
    return Situation(Diagnosis.of(load_taxonomy()["loss_spike"], "the loss jumped", confidence=0.9), job, spent=spent)


def test_the_policy_rolls_back_twice_and_then_stops_and_asks() -> None:
    first, second, third = (decide(spike(spent)) for spent in range(3))
    assert first.action is Action.ROLLBACK and first.resume.step == 200 and first.resume.skip_batches == ((249, 255),)
    assert second.action is Action.ROLLBACK and second.resume.step == 100
    assert third.action is Action.STOP and third.audience is not None
