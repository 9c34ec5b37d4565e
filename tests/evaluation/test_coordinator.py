"""The coordinator as a pure step: what it starts, keeps, repeats and gives up."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.coordinator import MAX_FAILURES, MAX_NODE_LOSSES, MAX_STAGINGS, RunState, begin, progress_of, remaining, step
from evaluation.drivers.slurm import unusable
from evaluation.events import (
    Command,
    Event,
    Finish,
    GiveUp,
    LeaveNode,
    NodeLost,
    NodeModel,
    PieceWritten,
    SlotsChanged,
    StageEnded,
    StageModel,
    StartTrial,
    StartVerification,
    StopTrial,
    Tick,
    TrialEnded,
    VerificationEnded,
)
from evaluation.planner import Site
from evaluation.workload import Dataset, Slot

A0, A1, B0 = Slot("a", 0), Slot("a", 1), Slot("b", 0)


def started(datasets, slots=(A0,), workers=1, **there) -> tuple[RunState, tuple[Command, ...]]:
    """A run whose nodes have the model."""
    state = begin(Site(slots, workers), datasets, there.get("generated", {}), there.get("verified", {}))
    state, commands = step(state, Tick(), 0.0)
    for command in commands:
        if isinstance(command, StageModel):
            state, commands = step(state, StageEnded(command.node), 1.0)
    return state, commands


def only(commands, kind):
    found = [command for command in commands if isinstance(command, kind)]
    assert len(found) == 1, commands
    return found[0]


def whole(trial: StartTrial) -> dict[str, frozenset[int]]:
    samples: dict[str, frozenset[int]] = {}
    for piece in trial.pieces:
        samples[piece.dataset] = samples.get(piece.dataset, frozenset()) | frozenset(range(piece.first, piece.last))
    return samples


def test_a_node_gets_the_model_once_before_its_first_trial():
    state = begin(Site((A0, A1, B0), 1), [Dataset("d", 90, 90.0)], {}, {})
    state, commands = step(state, Tick(), 0.0)
    assert commands == (StageModel("a"), StageModel("b"))
    state, commands = step(state, StageEnded("a"), 1.0)
    assert {command.slot for command in commands if isinstance(command, StartTrial)} == {A0, A1}
    assert all(command.model is NodeModel.STAGED for command in commands if isinstance(command, StartTrial))


def test_a_dead_precursor_is_tried_again_and_then_trials_read_from_storage():
    state = begin(Site((A0,), 1), [Dataset("d", 4, 4.0)], {}, {})
    state, commands = step(state, Tick(), 0.0)
    for _ in range(MAX_STAGINGS - 1):
        state, commands = step(state, StageEnded("a", "killed by signal 9", again=True), 1.0)
        assert commands == (StageModel("a"),)
    state, commands = step(state, StageEnded("a", "killed by signal 9", again=True), 1.0)
    assert only(commands, StartTrial).model is NodeModel.STORAGE


def test_full_shared_memory_costs_only_the_sharing():
    state = begin(Site((A0,), 1), [Dataset("d", 4, 4.0)], {}, {})
    state, _ = step(state, Tick(), 0.0)
    _, commands = step(state, StageEnded("a", "shared memory is full"), 1.0)
    assert only(commands, StartTrial).model is NodeModel.STORAGE


def test_a_node_that_cannot_have_a_fetched_model_is_left_and_the_others_go_on():
    state = begin(Site((A0, B0), 1), [Dataset("d", 4, 4.0)], {}, {}, mounted=False)
    state, _ = step(state, Tick(), 0.0)
    state, commands = step(state, StageEnded("a", "https://s/m answers 404"), 1.0)
    assert only(commands, LeaveNode).why == "the model cannot be had there: https://s/m answers 404"
    state, _ = step(state, SlotsChanged((A0, B0)), 1.0)
    assert state.site.slots == (B0,)
    _, commands = step(state, StageEnded("b", "https://s/m answers 404"), 2.0)
    assert only(commands, Finish).why == "no node is left to run on, 1 datasets are open"


def test_outputs_are_verified_while_the_trial_goes_on():
    state, commands = started([Dataset("x", 4, 4.0, 8.0), Dataset("y", 4, 9.0, 1.0)])
    trial = only(commands, StartTrial)
    state, commands = step(state, PieceWritten(trial.trial, "x", frozenset(range(4))), 5.0)
    assert only(commands, StartVerification).dataset == "x"


def test_what_a_crashed_trial_wrote_is_kept_and_the_rest_is_planned_again():
    state, commands = started([Dataset("d", 10, 10.0)])
    trial = only(commands, StartTrial)
    state, commands = step(state, TrialEnded(trial.trial, {"d": frozenset({0, 1, 2})}, "exit status 1"), 5.0)
    again = only(commands, StartTrial)
    assert whole(again) == {"d": frozenset(range(3, 10))}
    assert only(commands, StartVerification).samples == frozenset({0, 1, 2})


def test_a_dataset_that_keeps_failing_is_given_up_and_the_others_go_on():
    state, commands = started([Dataset("bad", 2, 50.0, runner=""), Dataset("good", 2, 1.0, runner="")])
    given_up = []
    for moment in range(20):
        trial = next((command for command in commands if isinstance(command, StartTrial)), None)
        if trial is None:
            break
        bad = trial.pieces[0].dataset == "bad"
        state, commands = step(
            state, TrialEnded(trial.trial, {} if bad else whole(trial), "no such task" if bad else None), moment
        )
        given_up += [command for command in commands if isinstance(command, GiveUp)]
    assert [command.dataset for command in given_up] == ["bad"]
    assert f"{MAX_FAILURES} times" in given_up[0].why and "no such task" in given_up[0].why
    job = next(iter(state.verifying))
    state, commands = step(state, VerificationEnded(job, frozenset({0, 1})), 30.0)
    assert only(commands, Finish).why == "1 of 2 datasets were given up"


def test_a_node_whose_trials_are_killed_one_after_another_is_left():
    datasets = [Dataset(f"d{index}", 5, 5.0, runner="") for index in range(8)]
    state, _ = started(datasets, slots=(A0, B0))
    left = []
    for moment in range(MAX_NODE_LOSSES):
        number = next(number for number, trial in state.trials.items() if trial.slot == B0)
        state, commands = step(state, TrialEnded(number, {}, "killed by signal 9", lost=True), moment)
        left += [command for command in commands if isinstance(command, LeaveNode)]
    assert [command.node for command in left] == ["b"]
    assert state.site.slots == (A0,)
    state, _ = step(state, SlotsChanged((A0, B0)), 9.0)
    assert state.site.slots == (A0,), "it does not come back by itself"


def test_a_node_that_is_lost_costs_its_datasets_nothing():
    state, _ = started([Dataset("d", 4, 4.0)], slots=(A0, B0))
    trial = next(number for number, trial in state.trials.items() if trial.slot == A0)
    state, commands = step(state, NodeLost("a", "Slurm says that it is down*"), 2.0)
    assert only(commands, LeaveNode) == LeaveNode("a", "Slurm says that it is down*")
    state, commands = step(state, NodeLost("a", "Slurm says that it is down*"), 2.0)
    assert not [command for command in commands if isinstance(command, LeaveNode)], "it is said once"
    state, _ = step(state, TrialEnded(trial, {}, "exit status 1", lost=True), 2.0)
    assert state.datasets["d"].failures == 0 and state.site.slots == (B0,)
    state, _ = step(state, SlotsChanged((A0, B0)), 3.0)
    assert state.site.slots == (B0,)


@pytest.mark.parametrize(
    ("states", "why"),
    [("mix\nmix\n", None), ("alloc\n", None), ("drng\n", None), ("down*\ndown*\n", "down*"), ("idle*\n", "idle*"), ("", None)],
)
def test_a_node_that_slurm_cannot_use_is_told_by_its_state(states, why):
    assert unusable(states) == (why and f"Slurm says that it is {why}")


def test_a_slot_that_is_asked_back_is_given_and_nothing_of_its_trial_is_charged():
    state, _ = started([Dataset("d", 20, 20.0)], slots=(A0, B0))
    state, commands = step(state, SlotsChanged((A0,)), 2.0)
    stopped = only(commands, StopTrial).trial
    state, commands = step(state, TrialEnded(stopped, {"d": frozenset()}, "killed by signal 15"), 3.0)
    assert state.datasets["d"].failures == 0
    assert all(trial.slot == A0 for trial in state.trials.values())


def test_without_a_slot_the_run_waits_for_one():
    state, commands = started([Dataset("d", 2, 2.0)])
    state, _ = step(state, SlotsChanged(()), 1.0)
    state, commands = step(state, TrialEnded(only(commands, StartTrial).trial, {}, "killed by signal 15"), 2.0)
    assert not state.finished
    state, commands = step(state, SlotsChanged((A1,)), 3.0)
    assert only(commands, StartTrial).slot == A1


def test_a_judge_that_is_down_is_asked_again_later_and_then_given_up():
    state, _ = started([Dataset("d", 2, 2.0)], generated={"d": range(2)})
    state, commands = step(begin(state.site, [Dataset("d", 2, 2.0)], {"d": range(2)}, {}), Tick(), 0.0)
    now = 0.0
    for _ in range(MAX_FAILURES):
        job = only(commands, StartVerification).job
        state, commands = step(state, VerificationEnded(job, frozenset(), "the judge gives no mark"), now)
        if state.datasets["d"].given_up:
            break
        assert not commands, "not at once"
        now += 60
        state, commands = step(state, Tick(), now)
    assert only(commands, GiveUp).why.endswith("the judge gives no mark")
    assert state.finished


def test_a_resumed_run_does_only_what_is_left():
    datasets = [Dataset("d", 6, 6.0), Dataset("done", 3, 3.0)]
    _, commands = started(datasets, generated={"d": range(4), "done": range(3)}, verified={"d": range(2), "done": range(3)})
    assert whole(only(commands, StartTrial)) == {"d": frozenset({4, 5})}
    state, commands = step(begin(Site((A0,), 1), datasets[1:], {"done": range(3)}, {"done": range(3)}), Tick(), 0.0)
    assert only(commands, Finish) and state.finished


def test_progress_names_every_dataset_and_what_runs():
    state, _ = started([Dataset("d", 4, 4.0)])
    progress = progress_of(state)
    assert progress["datasets"][0]["name"] == "d" and progress["running"] == [{"slot": "a:0", "label": "d"}]


def random_event(state: RunState, chance: random.Random) -> Event:
    """Something that the world could answer to what the coordinator started."""
    coming = [node for node, model in state.models.items() if model is NodeModel.COMING]
    kinds = [
        *(["stage"] * bool(coming)),
        *(["trial"] * (4 * bool(state.trials))),
        *(["verify"] * (4 * bool(state.verifying))),
        "slots",
        "tick",
    ]
    match chance.choice(kinds):
        case "stage":
            return StageEnded(chance.choice(coming), chance.choice([None, None, "full"]), again=chance.random() < 0.5)
        case "trial":
            number = chance.choice(sorted(state.trials))
            samples: dict[str, frozenset[int]] = {}
            for piece in state.trials[number].pieces:
                written = chance.choice([piece.last, chance.randint(piece.first, piece.last)])
                samples[piece.dataset] = samples.get(piece.dataset, frozenset()) | frozenset(range(piece.first, written))
                if written < piece.last:
                    return TrialEnded(number, samples, "exit status 1", lost=chance.random() < 0.3)
            return TrialEnded(number, samples)
        case "verify":
            job = chance.choice(sorted(state.verifying))
            asked = sorted(state.verifying[job][1])
            done = frozenset(asked if chance.random() < 0.8 else asked[: len(asked) // 2])
            return VerificationEnded(job, done, None if len(done) == len(asked) else "exit status 75")
        case "slots":
            return SlotsChanged(tuple(slot for slot in (A0, A1, B0) if chance.random() < 0.8))
        case _:
            return Tick()


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_no_sample_is_lost_or_asked_for_twice_at_once_whatever_happens(seed):
    chance = random.Random(seed)
    datasets = [
        Dataset(f"d{index}", chance.randint(1, 8), chance.uniform(1, 20), chance.choice([0.0, 9.0])) for index in range(4)
    ]
    state = begin(Site((A0, A1, B0), 2), datasets, {}, {})
    state, _ = step(state, Tick(), 0.0)
    for moment in range(120):
        busy: Counter[tuple[str, int]] = Counter()
        for trial in state.trials.values():
            busy.update((piece.dataset, sample) for piece in trial.pieces for sample in range(piece.first, piece.last))
        assert not busy or max(busy.values()) == 1
        left = remaining(state)
        for name, entry in state.datasets.items():
            assert entry.verified <= entry.generated
            if entry.given_up is None:
                open_samples = {sample for first, last in left[name] for sample in range(first, last)}
                running = {sample for other, sample in busy if other == name}
                assert entry.generated | open_samples | running == set(range(entry.dataset.samples))
                assert not open_samples & (entry.generated | running)
        assert len({trial.slot for trial in state.trials.values()}) == len(state.trials)
        assert len(state.verifying) <= 2
        if state.finished:
            break
        state, _ = step(state, random_event(state, chance), moment * 20.0)
