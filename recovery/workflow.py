"""The recovery of one failure as a pure step function: (state, event) -> (state, commands).

detected -> diagnosed -> decided -> (approved) -> (localised) -> planned -> acted -> verified | escalated | stopped.
Whoever runs it stores the state together with what its commands did, so that a crash between two steps loses nothing and
doubles nothing.
"""

from __future__ import annotations

from dataclasses import replace

from recovery.decision import Action, Audience, DirectiveKind, Mode
from recovery.states import (
    Act,
    Approved,
    AskApproval,
    Command,
    Decide,
    Decided,
    Diagnosed,
    Ended,
    Event,
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
    Step,
    Stepped,
    Tick,
    Withheld,
)

__all__ = ["Result", "step"]

Result = tuple[Recovery, tuple[Command, ...]]


def step(state: Recovery, event: Event, limits: Limits = Limits()) -> Result:
    """Advance by one event. Events that say nothing new to this state change nothing; a finished recovery never changes."""
    if state.is_over:
        return state, ()
    match event:
        case Diagnosed():
            return _diagnosed(state, event)
        case Decided():
            return _decided(state, event, limits)
        case Approved():
            return _approved(state, event, limits)
        case Rejected():
            return _rejected(state, event)
        case Withheld():
            if state.stage not in (Stage.DECIDED, Stage.APPROVED, Stage.LOCALISED) or state.decision is None:
                return state, ()
            return _refused(state, event.at, event.why)
        case Localised():
            if state.stage not in (Stage.DECIDED, Stage.APPROVED) or state.awaits_approval:
                return state, ()
            return _localised(state, event)
        case Planned():
            return _planned(state, event, limits)
        case Reported():
            return _reported(state, event, limits)
        case Started():
            return _started(state, event, limits)
        case Stepped():
            return _stepped(state, event, limits)
        case Ended():
            return _ended(state, event)
        case FailedAgain():
            if event.generation <= state.first:
                return state, ()
            return _to(state, Stage.ESCALATED, event.at, f"failed again before it was verified: {event.why}"), ()
        case NodesLost():
            underway = state.stage in (Stage.PLANNED, Stage.ACTED) and not state.is_stop
            if not underway or set(event.nodes) <= {*_excluded(state), *_out_of_reach(state)}:
                return state, ()
            # What failed elsewhere was its doing: the cause is looked for again.
            why = f"{', '.join(event.nodes)} {event.how} before the job went on"
            return _again(state, event.at, why, Stage.DETECTED), ()
        case Tick():
            return _ticked(state, event, limits)


def _to(state: Recovery, stage: Stage, at: float, why: str, deadline: float | None = None) -> Recovery:
    return replace(state, trail=(*state.trail, Step(stage, at, why)), deadline=deadline)


def _decide(state: Recovery) -> Result:
    return state, (Decide(state.escalation, state.denied, state.approved, state.localised),)


def _diagnosed(state: Recovery, event: Diagnosed) -> Result:
    if state.stage is not Stage.DETECTED:
        return state, ()
    return _decide(_to(state, Stage.DIAGNOSED, event.at, event.why))


def _decided(state: Recovery, event: Decided, limits: Limits) -> Result:
    if state.stage is not Stage.DIAGNOSED and state.decision is not None:
        return state, ()
    decision = event.decision
    decided = replace(_to(state, Stage.DECIDED, event.at, decision.sentence), decision=decision)
    if decided.started:
        return _verifying(decided, event.at, _superseded(decided), limits), ()
    if decision.directive is DirectiveKind.NONE and decision.mode is Mode.AUTO:
        return _to(decided, Stage.VERIFIED, event.at, "nothing to do"), ()
    if decision.directive is DirectiveKind.NONE:
        return replace(decided, deadline=event.at + limits.verify_seconds), ()
    if decision.mode is Mode.APPROVE:
        until = event.at + limits.approval_seconds
        return replace(decided, deadline=until), (AskApproval(until),)
    return _towards_plan(decided, event.at, limits)


def _towards_plan(state: Recovery, at: float, limits: Limits) -> Result:
    if state.decision is not None and state.decision.localise and not state.localised:
        until = at + limits.localise_seconds
        return replace(state, deadline=until), (Localise(until),)
    return state, (Plan(),)


def _localised(state: Recovery, event: Localised) -> Result:
    """Known faulty nodes change what is to be done; without any, what was decided is carried out."""
    found = _to(state, Stage.LOCALISED, event.at, event.why)
    if not event.nodes:
        return found, (Plan(),)
    return _decide(replace(found, decision=None, localised=event.nodes))


def _approved(state: Recovery, event: Approved, limits: Limits) -> Result:
    if not state.awaits_approval or state.decision is None:
        return state, ()
    state = replace(state, approved=(*state.approved, state.decision.action))
    return _towards_plan(_to(state, Stage.APPROVED, event.at, f"approved by {event.by}"), event.at, limits)


def _rejected(state: Recovery, event: Rejected) -> Result:
    if not state.awaits_approval:
        return state, ()
    return _refused(state, event.at, f"rejected by {event.by}: {event.why}")


def _refused(state: Recovery, at: float, why: str) -> Result:
    """The action is off the table: decide again without it."""
    assert state.decision is not None
    state = replace(state, denied=(*state.denied, (state.decision.action, why)), decision=None)
    return _decide(_to(state, Stage.DIAGNOSED, at, why))


def _planned(state: Recovery, event: Planned, limits: Limits) -> Result:
    decision = state.decision
    if state.stage not in (Stage.DECIDED, Stage.APPROVED, Stage.LOCALISED) or state.awaits_approval or decision is None:
        return state, ()
    if event.decision is not None:
        decision = event.decision
        state = replace(state, decision=decision)
    if state.started or event.heard > (state.successor if state.successor is not None else state.generation):
        state = replace(state, successor=max(event.heard, state.successor or 0), started=True, superseded=True)
        return _verifying(state, event.at, _superseded(state), limits), ()
    generation = max(event.heard, state.generation) + 1
    until = event.at + decision.delay_seconds + limits.act_seconds
    commands: list[Command] = []
    if decision.audience is not None:
        commands.append(Notify(decision.audience, decision.sentence))
    if state.is_stop and state.gone:
        return _to(state, Stage.STOPPED, event.at, "every process was gone already"), tuple(commands)
    # Where no agent listens, the directive itself is the action and its launcher carries it out.
    if event.agents:
        commands.append(Act(decision, generation, until))
    else:
        until += limits.verify_seconds
    if event.queued:
        until += limits.queue_seconds
    planned = _to(state, Stage.PLANNED, event.at, event.why, until)
    return replace(planned, successor=None if state.is_stop else generation), tuple(commands)


def _superseded(state: Recovery) -> str:
    return f"superseded: the launcher acted by itself under generation {state.successor}"


def _verifying(state: Recovery, at: float, why: str, limits: Limits) -> Recovery:
    return _to(state, Stage.ACTED, at, why, at + limits.verify_seconds)


def _reported(state: Recovery, event: Reported, limits: Limits) -> Result:
    if state.stage is not Stage.PLANNED:
        return state, ()
    if event.status == "done":
        if not event.complete:
            return state, ()
        if state.is_stop:
            return _to(replace(state, gone=True), Stage.STOPPED, event.at, event.detail or "every process is gone"), ()
        return _verifying(replace(state, started=True), event.at, event.detail or "restarted", limits), ()
    proposed = state.successor if state.successor is not None else state.generation + 1
    if event.status == "refused" and event.generation >= proposed:
        state = replace(state, successor=event.generation, started=True, superseded=True)
        return _verifying(state, event.at, _superseded(state), limits), ()
    if event.status == "refused":
        # The agent is about something of its own; what that is shows before the deadline.
        return state, ()
    return _escalate(state, event.at, f"the command was {event.status}: {event.detail}", limits)


def _started(state: Recovery, event: Started, limits: Limits) -> Result:
    if event.generation <= state.generation:
        return state, ()
    known = replace(state, started=True, gone=False, successor=max(event.generation, state.successor or 0))
    if state.stage is Stage.PLANNED:
        if state.is_stop:
            return _escalated(state, event.at, f"started again ({event.cause}) although it was to stop")
        if event.generation == state.successor:
            return _verifying(known, event.at, f"started under generation {event.generation}", limits), ()
        known = replace(known, superseded=True)
        return _verifying(known, event.at, _superseded(known), limits), ()
    if state.stage in (Stage.DECIDED, Stage.APPROVED, Stage.LOCALISED):
        known = replace(known, superseded=True)
        return _verifying(known, event.at, _superseded(known), limits), ()
    # While the cause is still being looked for, or once it is being verified, it is only noted.
    return replace(known, superseded=state.superseded or state.stage is not Stage.ACTED), ()


def _stepped(state: Recovery, event: Stepped, limits: Limits) -> Result:
    if event.generation <= state.generation:
        return state, ()
    if state.stage is not Stage.ACTED:
        state, commands = _started(state, Started(event.at, event.generation, "heartbeat"), limits)
        if state.stage is not Stage.ACTED:
            return state, commands
    if event.step is None:
        if event.at - state.trail[-1].at >= limits.settle_seconds:
            why = f"no steps are reported; it has been running for {limits.settle_seconds:.0f} s"
            return _to(state, Stage.VERIFIED, event.at, why), ()
        return state, ()
    if state.step_before is None or event.step > state.step_before:
        return _to(replace(state, progress=event.step), Stage.VERIFIED, event.at, _passed(state, event.step)), ()
    if state.progress is None or event.step > state.progress:
        return replace(state, progress=event.step, deadline=event.at + limits.verify_seconds), ()
    return state, ()


def _passed(state: Recovery, reached: int) -> str:
    return f"at step {reached}" + (f", past step {state.step_before} where it failed" if state.step_before is not None else "")


def _ended(state: Recovery, event: Ended) -> Result:
    state = replace(state, gone=True)
    if state.is_stop and state.stage is Stage.PLANNED:
        return _to(state, Stage.STOPPED, event.at, "every process is gone"), ()
    if state.stage is not Stage.ACTED or event.generation <= state.generation:
        return state, ()
    if event.exit_status == 0:
        return _to(state, Stage.VERIFIED, event.at, "the job ended well"), ()
    return _escalated(state, event.at, f"the job ended with exit status {event.exit_status} before it was verified")


def _ticked(state: Recovery, event: Tick, limits: Limits) -> Result:
    if state.deadline is None or event.at < state.deadline:
        return state, ()
    if state.awaits_approval:
        return _refused(state, event.at, f"nobody approved it within {limits.approval_seconds:.0f} s")
    if state.stage in (Stage.DECIDED, Stage.APPROVED) and state.decision is not None:
        if state.decision.directive is DirectiveKind.NONE:
            return _escalated(state, event.at, "left to its launcher, which has not started it again")
        return _to(state, Stage.LOCALISED, event.at, "localisation gave no answer in time"), (Plan(),)
    if state.is_stop:
        return _escalated(state, event.at, "nobody confirmed that every process is gone")
    if state.stage is Stage.PLANNED:
        return _escalate(state, event.at, "it was not carried out in time", limits)
    if state.progress is None:
        return _escalate(state, event.at, f"no step within {limits.verify_seconds:.0f} s", limits)
    return _escalate(state, event.at, f"no step after {state.progress} for {limits.verify_seconds:.0f} s", limits)


def _escalate(state: Recovery, at: float, why: str, limits: Limits) -> Result:
    """What was done did not hold: decide again one severity higher, or hand over to people. Ranks that did not go on in their
    processes may still be restarted: that is the next thing to try at the same severity."""
    if state.decision is not None and state.decision.directive is DirectiveKind.ADAPT:
        again = _again(state, at, why)
        return _decide(replace(again, denied=(*again.denied, (Action.ADAPT, why))))
    if state.escalation >= limits.escalations:
        return _escalated(state, at, f"{why}; {state.escalation} attempts did not help")
    again = _again(state, at, why)
    return _decide(replace(again, escalation=state.escalation + 1))


def _again(state: Recovery, at: float, why: str, stage: Stage = Stage.DIAGNOSED) -> Recovery:
    """Back to deciding, or to before it. A generation once proposed is spent: some agent may have begun it."""
    return replace(
        _to(state, stage, at, why),
        decision=None,
        generation=state.generation if state.successor is None else state.successor,
        successor=None,
        started=False,
        superseded=False,
        progress=None,
    )


def _excluded(state: Recovery) -> tuple[str, ...]:
    return state.decision.exclude if state.decision is not None else ()


def _out_of_reach(state: Recovery) -> tuple[str, ...]:
    return state.decision.out_of_reach if state.decision is not None else ()


def _escalated(state: Recovery, at: float, why: str) -> Result:
    return _to(state, Stage.ESCALATED, at, why), (Notify(Audience.OPERATORS, f"{state.job}: {why}"),)
