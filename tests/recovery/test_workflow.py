"""The recovery workflow: its stories, and what holds over every order of events."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.decision import RELAUNCHES, Action, Audience, Decision, DirectiveKind, Mode
from recovery.states import (
    TERMINAL,
    Act,
    Approved,
    AskApproval,
    Decide,
    Decided,
    Diagnosed,
    Ended,
    FailedAgain,
    Limits,
    Localise,
    Localised,
    NodesLost,
    Notify,
    Plan,
    Planned,
    Recovery,
    Rejected,
    Reported,
    Stage,
    Started,
    Stepped,
    Tick,
)
from recovery.workflow import step

RESTART = Decision(Action.RESTART, DirectiveKind.RESTART, Mode.AUTO, ("it will pass",), "restart")
STOP = Decision(Action.STOP, DirectiveKind.STOP, Mode.AUTO, ("a bug",), "stop", audience=Audience.OWNER)
ISOLATE = Decision(Action.ISOLATE, DirectiveKind.SHRINK, Mode.APPROVE, ("Xid 79",), "shrink", exclude=("n2",))
NEW = Recovery.detected("gpt", 0, 3, 40, 100.0, "rank 1 was killed")


def run(state, *events, limits=Limits()):
    commands = []
    for event in events:
        state, given_commands = step(state, event, limits)
        commands.extend(given_commands)
    return state, commands


def acting(decision=RESTART):
    return run(NEW, Diagnosed(101, "killed"), Decided(102, decision), Planned(103, 3, True, "same nodes"))


def stages(state):
    return [entry.stage.value for entry in state.trail]


def test_a_restart_goes_from_detected_to_verified_with_a_time_for_each_step():
    state, commands = acting()
    assert commands == [Decide(0, (), ()), Plan(), Act(RESTART, 4, 163.0)]
    state, commands = run(state, Started(104, 4, "restart"), Stepped(105, 4, 30), Stepped(106, 4, 40), Stepped(107, 4, 41))
    assert commands == []
    assert stages(state) == ["detected", "diagnosed", "decided", "planned", "acted", "verified"]
    assert [entry.at for entry in state.trail] == [100.0, 101, 102, 103, 104, 107]
    assert state.trail[-1].why == "at step 41, past step 40 where it failed"


def test_a_stop_is_over_when_the_owner_is_told_and_every_process_is_gone():
    state, commands = acting(STOP)
    assert commands[-2:] == [Notify(Audience.OWNER, "a bug"), Act(STOP, 4, 163.0)]
    assert state.stage is Stage.PLANNED
    state, _ = run(state, Reported(104, "done", 3, "2 ranks stopped", complete=True))
    assert state.stage is Stage.STOPPED


def test_a_stop_is_not_over_until_every_agent_has_answered():
    state, _ = acting(STOP)
    state, _ = run(state, Reported(104, "done", 3, "stopped"))
    assert state.stage is Stage.PLANNED
    assert run(state, Ended(105, 3, 1))[0].stage is Stage.STOPPED


def test_a_job_that_starts_again_after_a_stop_is_handed_to_the_operators():
    state, commands = acting(STOP)
    state, commands = run(state, Started(104, 4, "self"))
    assert state.stage is Stage.ESCALATED
    assert [command.audience for command in commands] == [Audience.OPERATORS]


def test_an_agent_that_acted_by_itself_supersedes_the_command_before_it_is_issued():
    state, commands = run(NEW, Started(101, 4, "self"), Diagnosed(102, "killed"), Decided(103, RESTART))
    assert not any(isinstance(command, Act) for command in commands)
    assert state.stage is Stage.ACTED
    assert run(state, Stepped(104, 4, 41))[0].stage is Stage.VERIFIED


def test_a_generation_heard_of_before_planning_supersedes_the_command():
    state, commands = run(NEW, Diagnosed(101, "killed"), Decided(102, RESTART), Planned(103, 5, True, "same nodes"))
    assert not any(isinstance(command, Act) for command in commands)
    assert (state.stage, state.successor, state.superseded) == (Stage.ACTED, 5, True)


def test_a_refusal_with_a_newer_generation_goes_on_to_verify_under_it():
    state, _ = acting()
    state, commands = run(state, Reported(104, "refused", 4, "generation 4 is not above 4"))
    assert (state.stage, state.superseded, commands) == (Stage.ACTED, True, [])
    assert run(state, Stepped(105, 4, 41))[0].stage is Stage.VERIFIED


def test_a_refusal_by_an_agent_that_is_busy_waits_for_what_it_does():
    state, _ = acting()
    state, commands = run(state, Reported(104, "refused", 3, "the agent is restarting already"))
    assert (state.stage, commands) == (Stage.PLANNED, [])
    assert run(state, Started(105, 4, "self"), Stepped(106, 4, 41))[0].stage is Stage.VERIFIED
    assert run(state, Tick(163))[1] == [Decide(1, (), ())]


def test_steps_of_the_old_generation_verify_nothing():
    state, _ = acting()
    assert run(state, Started(104, 4, "restart"), Stepped(105, 3, 99))[0].stage is Stage.ACTED


def test_a_job_without_steps_is_verified_once_it_has_run_for_a_while():
    state, _ = acting()
    state, _ = run(state, Started(104, 4, "restart"), Stepped(110, 4, None))
    assert state.stage is Stage.ACTED
    assert run(state, Stepped(164, 4, None))[0].stage is Stage.VERIFIED


def test_a_restart_that_makes_no_step_is_decided_again_one_severity_higher():
    state, _ = acting()
    state, commands = run(state, Started(104, 4, "restart"), Tick(403.9), Tick(404))
    assert commands == [Decide(1, (), ())]
    assert (state.stage, state.generation) == (Stage.DIAGNOSED, 4)
    state, commands = run(state, Decided(405, RESTART), Planned(406, 4, True, "same nodes"))
    assert commands[-1] == Act(RESTART, 5, 466.0)


def test_progress_gives_more_time():
    state, _ = acting()
    state, commands = run(state, Started(104, 4, "restart"), Stepped(400, 4, 12), Tick(404))
    assert commands == []
    assert run(state, Tick(700))[1] == [Decide(1, (), ())]


def test_people_are_asked_when_attempts_do_not_help():
    state, commands = acting()
    at = 104.0
    while not state.is_over:
        state, more = run(state, Tick(at + 1000), Decided(at + 1001, RESTART), Planned(at + 1002, 3, True, "same nodes"))
        commands += more
        at += 1002
    assert state.stage is Stage.ESCALATED
    assert sum(isinstance(command, Act) for command in commands) == 4
    assert isinstance(commands[-1], Notify)


def test_a_new_failure_before_verification_ends_the_recovery_as_escalated():
    state, _ = acting()
    state, _ = run(state, Started(104, 4, "restart"), FailedAgain(110, 4, "rank 0 was killed"))
    assert state.stage is Stage.ESCALATED


def test_nothing_is_done_while_approval_is_awaited():
    state, commands = run(NEW, Diagnosed(101, "Xid"), Decided(102, ISOLATE))
    assert commands[-1] == AskApproval(1002.0)
    state, commands = run(state, Planned(103, 3, True, "early"), Localised(103, "early"))
    assert (state.stage, commands) == (Stage.DECIDED, [])


def test_approval_goes_on_and_rejection_decides_again_without_the_action():
    waiting, _ = run(NEW, Diagnosed(101, "Xid"), Decided(102, ISOLATE))
    approved, commands = run(waiting, Approved(110, "ann"))
    assert (approved.stage, commands) == (Stage.APPROVED, [Plan()])
    rejected, commands = run(waiting, Rejected(110, "bob", "maintenance tonight"))
    assert commands == [Decide(0, ((Action.ISOLATE, "rejected by bob: maintenance tonight"),), ())]
    expired, commands = run(waiting, Tick(1002))
    assert commands == [Decide(0, ((Action.ISOLATE, "nobody approved it within 900 s"),), ())]
    assert run(rejected, Decided(111, RESTART))[1] == [Plan()]
    assert run(expired, Approved(1003, "late"))[1] == []


def test_localisation_comes_before_planning_and_may_give_no_answer():
    state, commands = run(NEW, Diagnosed(101, "timeout"), Decided(102, replace(RESTART, localise=True)))
    assert commands[-1] == Localise(162.0)
    assert run(state, Localised(110, "nothing was found"))[1] == [Plan()]
    silent, commands = run(state, Tick(162))
    assert (silent.stage, commands) == (Stage.LOCALISED, [Plan()])


def test_confirmed_nodes_are_decided_upon_anew_and_are_not_looked_for_again():
    state, _ = run(NEW, Diagnosed(101, "timeout"), Decided(102, replace(RESTART, localise=True)))
    state, commands = run(state, Localised(110, "n2 fails with two good partners", ("n2",)))
    assert commands == [Decide(0, (), (), ("n2",))]
    assert state.stage is Stage.LOCALISED
    state, commands = run(state, Decided(110, replace(RESTART, localise=True)))
    assert commands == [Plan()]
    assert stages(state)[-2:] == ["localised", "decided"]


def test_a_node_that_is_lost_before_it_could_act_is_diagnosed_and_decided_upon_anew_under_the_next_generation():
    state, _ = acting()
    state, commands = run(state, NodesLost(106, ("n2",)))
    assert (state.stage, commands) == (Stage.DETECTED, [])
    state, commands = run(state, Diagnosed(106, "n2 is lost"))
    assert commands == [Decide(0, (), ())]
    shrink = replace(RESTART, action=Action.SHRINK, directive=DirectiveKind.SHRINK, exclude=("n2",), use=("n1",))
    state, commands = run(state, Decided(106, shrink), Planned(106, 4, True, "on n1"))
    assert commands[-1] == Act(shrink, 5, 166.0)
    assert run(state, NodesLost(107, ("n2",))) == (state, [])


def test_a_node_that_is_lost_before_the_job_goes_on_is_diagnosed_anew_however_far_the_action_came():
    state, _ = acting()
    state, _ = run(state, Started(106, 4, "restart"))
    assert state.stage is Stage.ACTED
    state, commands = run(state, NodesLost(108, ("n2",)))
    assert (state.stage, state.generation, commands) == (Stage.DETECTED, 4, [])


def test_without_an_agent_the_directive_is_the_action_and_its_launcher_is_watched():
    state, commands = run(NEW, Diagnosed(101, "killed"), Decided(102, RESTART), Planned(103, 3, False, "no agent"))
    assert not any(isinstance(command, Act) for command in commands)
    assert run(state, Stepped(120, 4, 20), Stepped(121, 4, 41))[0].stage is Stage.VERIFIED


def test_no_action_in_mode_observe_is_verified_where_the_launcher_restarts_by_itself():
    observed = Decision(Action.NONE, DirectiveKind.NONE, Mode.OBSERVE, ("mode observe",), "restart")
    state, commands = run(NEW, Diagnosed(101, "killed"), Decided(102, observed))
    assert commands == [Decide(0, (), ())]
    assert run(state, Started(108, 4, "self"), Stepped(110, 4, 41))[0].stage is Stage.VERIFIED
    assert run(state, Tick(402))[0].stage is Stage.ESCALATED


def test_nothing_to_do_is_done():
    nothing = Decision(Action.NONE, DirectiveKind.NONE, Mode.AUTO, ("no failure was found",), "none")
    assert run(NEW, Diagnosed(101, "none"), Decided(102, nothing))[0].stage is Stage.VERIFIED


times = st.floats(0, 5000)
generations = st.integers(2, 7)
decisions = st.sampled_from([RESTART, STOP, ISOLATE, replace(RESTART, localise=True), replace(RESTART, mode=Mode.APPROVE)])
events = st.one_of(
    st.builds(Diagnosed, times, st.just("why")),
    st.builds(Decided, times, decisions),
    st.builds(Approved, times, st.just("ann")),
    st.builds(Rejected, times, st.just("bob"), st.just("no")),
    st.builds(Localised, times, st.just("n2"), st.sampled_from([(), ("n2",)])),
    st.builds(Planned, times, generations, st.booleans(), st.just("plan")),
    st.builds(
        Reported, times, st.sampled_from(["done", "failed", "refused", "expired"]), generations, st.just(""), st.booleans()
    ),
    st.builds(Started, times, generations, st.just("self")),
    st.builds(Stepped, times, generations, st.none() | st.integers(0, 60)),
    st.builds(Ended, times, generations, st.none() | st.integers(0, 2)),
    st.builds(FailedAgain, times, generations, st.just("again")),
    st.builds(NodesLost, times, st.sampled_from([("n1",), ("n2",)])),
    st.builds(Tick, times),
)


def answer(commands, decision, at):
    """What a dutiful shell would say to the last command."""
    match commands[-1] if commands else None:
        case Decide():
            return Decided(at, decision)
        case Plan():
            return Planned(at, 3, True, "same nodes")
        case AskApproval():
            return Approved(at, "ann")
        case Localise():
            return Localised(at, "n2")
        case Act():
            return Started(at, 4, "restart")
    return None


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), decisions, events), max_size=40))
def test_no_order_of_events_acts_without_leave_or_twice_under_one_decision(draws):
    (state, commands), limits, decided, acts, proposed = step(NEW, Diagnosed(101, "why")), Limits(), 1, 0, 0
    for dutiful, decision, other in draws:
        before = state
        event = (answer(commands, decision, 102) if dutiful else None) or other
        state, commands = step(state, event, limits)
        decided += sum(isinstance(command, Decide) for command in commands)
        for command in commands:
            if isinstance(command, Act):
                acts += 1
                assert isinstance(event, Planned)
                assert command.generation > max(event.heard, before.generation, proposed)
                proposed = command.generation
                assert command.decision.mode is Mode.AUTO or command.decision.action in state.approved
                assert not before.started
                assert state.successor == (None if state.is_stop else command.generation)
        if before.stage in TERMINAL:
            assert (state, commands) == (before, ())
        assert len(state.trail) >= len(before.trail)
    assert acts <= decided
    relaunches = state.escalation
    assert relaunches <= limits.escalations
    if state.stage is Stage.STOPPED:
        assert state.is_stop
    if state.stage is Stage.VERIFIED:
        assert state.decision is not None
        assert state.decision.action in RELAUNCHES or state.started


ADAPT = Decision(Action.ADAPT, DirectiveKind.ADAPT, Mode.AUTO, ("cheaper than a restart",), "adapt", use=("n1", "n2"))


def test_ranks_that_could_not_go_on_in_their_processes_are_restarted_at_the_same_severity():
    state, commands = acting(ADAPT)
    assert commands[-1] == Act(ADAPT, 4, 163.0)
    state, commands = run(state, Reported(104, "failed", 3, "n1: not all ranks wait for a new group"))
    assert [(type(command), command.escalation, command.denied[0][0]) for command in commands] == [(Decide, 0, Action.ADAPT)]
    state, commands = run(state, Decided(105, RESTART), Planned(106, 3, True, "same nodes"))
    assert commands[-1] == Act(RESTART, 5, 166.0)


def test_an_adaptation_after_which_no_step_is_made_is_followed_by_a_restart():
    state, _ = acting(ADAPT)
    state, _ = run(state, Started(104, 4, "restart"))
    assert state.stage is Stage.ACTED
    state, commands = run(state, Tick(404))
    assert commands == [Decide(0, ((Action.ADAPT, "no step within 300 s"),), ())]
    assert state.generation == 4
