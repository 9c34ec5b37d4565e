"""The way back of a node: repaired, probed alone and with a good node, clean for a while, and only then in service."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.decision import Mode
from recovery.node_return import (
    Approved,
    AskApproval,
    Cordon,
    CordonedByOthers,
    Faulted,
    Part,
    Phase,
    Probe,
    Probed,
    Rejected,
    RepairNoted,
    ReturnState,
    Terms,
    Tick,
    Uncordon,
    Uncordoned,
    step,
)

AUTO = Terms(dict.fromkeys(Part, Mode.AUTO), probation_seconds=3600.0)
ASK = Terms(dict.fromkeys(Part, Mode.APPROVE), probation_seconds=3600.0)
OBSERVE = Terms(probation_seconds=3600.0)


def run(terms, *events):
    state, commands = ReturnState.taken_out("n1", 100.0, "Xid 79")
    commands = list(commands)
    for event in events:
        state, given_commands = step(state, event, terms)
        commands.extend(given_commands)
    return state, commands


REPAIRED = RepairNoted(200.0, "ann", "GPU replaced")
ALONE = Probed(210.0, paired=False, passed=True, detail="8 of 8 GPUs")
PAIRED = Probed(220.0, paired=True, passed=True, detail="with n2")
CLEAN = Tick(220.0 + 3600.0)


def test_in_mode_auto_a_repaired_node_is_probed_twice_waits_out_its_probation_and_returns():
    state, commands = run(AUTO, REPAIRED, ALONE, PAIRED, Tick(230.0), CLEAN)
    assert commands == [Cordon("Xid 79"), Probe(paired=False), Probe(paired=True), Uncordon()]
    assert state.phase is Phase.CLEARED
    state, _ = step(state, Uncordoned(4000.0, "pitstop", ours=True), AUTO)
    assert state.phase is Phase.RETURNED
    assert [phase for phase, _, _ in state.trail] == [
        "cordoned", "repaired", "probing_alone", "probing_paired", "probation", "cleared", "returned"
    ]  # fmt: skip


def test_in_mode_approve_each_part_waits_for_a_person():
    state, commands = run(ASK, REPAIRED)
    assert commands[1:] == [AskApproval(Part.REQUALIFY)]
    assert run(ASK, REPAIRED, ALONE)[0].phase is Phase.REPAIRED
    state, commands = run(ASK, REPAIRED, Approved(205.0, "ann"), ALONE, PAIRED, CLEAN)
    assert (state.phase, state.awaits) == (Phase.CLEARED, Part.UNCORDON)
    assert Uncordon() not in commands
    assert step(state, Approved(5000.0, "ann"), ASK)[1] == (Uncordon(),)


def test_in_mode_observe_nothing_is_asked_and_a_person_may_still_go_ahead():
    state, commands = run(OBSERVE, REPAIRED)
    assert commands == [Cordon("Xid 79")]
    assert step(state, Approved(205.0, "ann"), OBSERVE)[1] == (Probe(paired=False),)


def test_without_a_repair_note_nothing_goes_on():
    assert run(AUTO, ALONE, PAIRED, CLEAN, Approved(300.0, "ann"))[0].phase is Phase.CORDONED


def test_a_failed_probe_or_a_new_fault_sends_it_back_to_the_start():
    failed, _ = run(AUTO, REPAIRED, Probed(210.0, paired=False, passed=False, detail="GPU 3 hangs"))
    assert failed.phase is Phase.CORDONED
    faulted, commands = run(AUTO, REPAIRED, ALONE, PAIRED, Faulted(300.0, "Xid 79 again"), CLEAN)
    assert (faulted.phase, Uncordon() in commands) == (Phase.CORDONED, False)


def test_a_manual_uncordon_cancels_the_return_for_good():
    state, commands = run(AUTO, REPAIRED, Uncordoned(205.0, "bob", ours=False), ALONE, PAIRED, CLEAN)
    assert state.phase is Phase.CANCELLED
    assert commands == [Cordon("Xid 79"), Probe(paired=False)]


def test_what_others_cordoned_too_is_left_to_them_until_they_let_it_go():
    state, commands = run(AUTO, REPAIRED, CordonedByOthers(205.0, "slurm admin"), ALONE, PAIRED, CLEAN)
    assert Uncordon() not in commands
    assert "slurm admin" in state.why
    assert step(state, CordonedByOthers(9000.0, None), AUTO)[1] == (Uncordon(),)


def test_a_rejected_return_needs_another_repair():
    state, _ = run(ASK, REPAIRED, Rejected(205.0, "bob", "wait for the vendor"))
    assert state.phase is Phase.CORDONED


times = st.floats(100, 20_000)
events = st.one_of(
    st.builds(RepairNoted, times, st.just("ann"), st.just("note")),
    st.builds(Approved, times, st.just("ann")),
    st.builds(Rejected, times, st.just("bob"), st.just("no")),
    st.builds(Probed, times, st.booleans(), st.booleans(), st.just("")),
    st.builds(Faulted, times, st.just("Xid")),
    st.builds(Uncordoned, times, st.just("bob"), st.booleans()),
    st.builds(CordonedByOthers, times, st.sampled_from([None, "slurm"])),
    st.builds(Tick, times),
)


sequences = st.lists(st.one_of(events, st.sampled_from([REPAIRED, ALONE, PAIRED, CLEAN])), max_size=40)


@settings(max_examples=200)
@given(
    st.lists(st.one_of(events, st.sampled_from([REPAIRED, ALONE, PAIRED, CLEAN])), max_size=40),
    st.sampled_from([AUTO, ASK, OBSERVE]),
)
def test_no_order_of_events_returns_a_node_unproven_unasked_or_held_by_others(sequence, terms):
    state, _ = ReturnState.taken_out("n1", 100.0, "Xid 79")
    for event in sequence:
        before = state
        state, commands = step(state, event, terms)
        if Uncordon() in commands:
            assert state.held_by is None
            phases = [phase for phase, _, _ in state.trail]
            last = len(phases) - 1 - phases[::-1].index("cordoned")
            since = [phase for phase in phases[last:] if phase != "held"]
            assert since == ["cordoned", "repaired", "probing_alone", "probing_paired", "probation", "cleared"]
            assert terms is AUTO or isinstance(event, Approved)
        if before.is_over:
            assert (state, commands) == (before, ())
