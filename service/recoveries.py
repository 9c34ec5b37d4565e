"""Runs recoveries durably: a step's new state, what it did, and what people see of it are one transaction.

So a kill between two steps loses nothing and doubles nothing: whoever runs next goes on from the stored state. The outside
effects are rows too (commands, notifications): they are carried out by others, under their own keys.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from detectors.lease import LeaseReview
from recovery.decision import CLUSTER_ACTIONS, Action, DirectiveKind, Mode
from recovery.drivers.local import agent_commands
from recovery.envelope import review
from recovery.policy import Situation, decide
from recovery.states import (
    Act,
    AskApproval,
    Command,
    Decide,
    Decided,
    Diagnosed,
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
    Reported,
    Stage,
    Step,
    Tick,
    Withheld,
)
from recovery.workflow import step
from rules.diagnosis import Diagnosis
from rules.pack import Rule
from rules.taxonomy import UNKNOWN, load_taxonomy
from service.directives import decided_directive, is_settled, waiting_directive
from service.effects import DECISION, carry_out, notify
from service.fleet import fleet_of
from service.incidents import FailureReport, apply_diagnosis, open_or_update_incident
from service.losses import awaits_leases, failures_of
from service.node_returns import NodeReturns
from service.placements import FailurePlanner, Outlook, planned, tell_prices, with_plan
from service.scheduling import Hand, hand_of, requeues, would_ask
from service.situations import cut_off_of, frozen, lost_of, nodes_of, observations, situation_of, step_before
from service.store import Store
from service.store.database import hold_lock
from service.store.events import publish_event
from service.store.incidents import Incident
from service.store.jobs import Job, current_attempt
from service.store.recoveries import ActionRow, CommandRow, RecoveryRow, find_recovery, unfinished
from service.timeline import IncidentState, add_timeline, move

__all__ = ["Diagnoser", "Recoveries"]

log = logging.getLogger("pitstop.recoveries")

STATE = TypeAdapter(Recovery)

# Who looks for a cause has this long; if it has died meanwhile, anybody else looks. Looking twice does no harm.
CLAIM_SECONDS = 5.0
LEASE_GRACE_SECONDS = 5.0


# Finds the cause of an incident, by its id, in what is stored of it. Slow; runs outside any transaction.
Diagnoser = Callable[[int], Diagnosis]


# Begins a localisation for a recovery, to end by then; why there can be none, else None.
Localiser = Callable[[Session, RecoveryRow, float], str | None]


def no_localiser(_session: Session, _row: RecoveryRow, _until: float) -> str | None:
    return "no localiser is set up: the place stays unknown"


def not_established(_incident_id: int) -> Diagnosis:
    """The honest answer of a service that cannot read its own evidence."""
    return Diagnosis.of(load_taxonomy()[UNKNOWN], "the cause was not established")


@dataclass(slots=True)
class Recoveries:
    """The durable runner. Its methods that take a session belong to the caller's transaction. `reviewed`: the last look at the
    leases."""

    store: Store
    clock: Callable[[], float]
    returns: NodeReturns
    diagnose: Diagnoser = not_established
    localise: Localiser = no_localiser
    limits: Limits = field(default_factory=Limits)
    rules: Sequence[Rule] = ()
    started_at: float = 0.0
    planner: FailurePlanner | None = None
    reviewed: Callable[[], LeaseReview] = LeaseReview
    name: str = field(default_factory=lambda: f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}")

    def report(self, session: Session, report: FailureReport) -> RecoveryRow:
        """Store a failure report with its incident and its recovery, at most one per failed generation."""
        now = self.clock()
        reported = open_or_update_incident(session, report, now)
        failure = reported.failure
        row = find_recovery(session, failure.job, failure.attempt, failure.generation)
        if row is None:
            job = session.get_one(Job, report.job)
            job.generation = max(job.generation, report.generation)
            before = step_before(session, report.job, report.generation, report.last_step)
            why = f"reported as failed in generation {report.generation}"
            state = Recovery.detected(report.job, report.attempt, report.generation, before, now, why)
            for older in unfinished(session, report.job):
                self._apply(session, older, FailedAgain(now, report.generation, why))
            row = RecoveryRow(
                incident_id=reported.incident.id,
                job=report.job,
                attempt=report.attempt,
                generation=report.generation,
                stage=state.stage.value,
                state=STATE.dump_python(state, mode="json"),
                relaunches=0,
                created_at=now,
                updated_at=now,
            )
            session.add(row)
            session.flush()
        return row

    def directive(self, session: Session, recovery_id: int) -> dict[str, Any]:
        """What launchers are told now: the decided answer, the same for ever, or `wait`."""
        row = session.get_one(RecoveryRow, recovery_id)
        return row.directive or waiting_directive(row.id, row.incident_id, STATE.validate_python(row.state))

    def dry_run(self, session: Session, row: RecoveryRow) -> dict[str, Any]:
        """What mode auto would do about this failure now, with the exact commands; nothing is stored."""
        state, now = STATE.validate_python(row.state), self.clock()
        situation, _ = self._situation(session, row, state, Decide(state.escalation, (), ()), None, now)
        decision = decide(replace(situation, modes=dict.fromkeys(Action, Mode.AUTO), frozen=None))
        job = session.get_one(Job, row.job)
        act = Act(decision, max(job.generation, state.generation) + 1, now + self.limits.act_seconds)
        nodes = nodes_of(job, current_attempt(session, row.job))
        asks = hand_of(session, row.job, row.generation, decision, self.returns.drivers.slurm) is Hand.REQUEUE
        told = (
            ()
            if decision.directive is DirectiveKind.NONE or asks
            else agent_commands(act, recovery=str(row.id), job=row.job, nodes=nodes)
        )
        taken = review(decision.exclude, fleet_of(session, now), now).take if decision.action in CLUSTER_ACTIONS else ()
        reset = decision.action is Action.RESET_GPU
        calls = [
            text
            for node in taken
            for text in self.returns.would_call(node, row.incident_id, act.generation, why=decision.why[0], reset=reset)
        ]
        return {
            "decision": DECISION.dump_python(decision, mode="json"),
            "commands": [
                {"node": command.node, "kind": command.kind, "generation": command.generation, "args": dict(command.args)}
                for command in told
            ],
            "calls": [*calls, *(would_ask(session, row, decision) if asks else ())],
        }

    def _situation(
        self, session: Session, row: RecoveryRow, state: Recovery, asked: Decide, diagnosis: Diagnosis | None, now: float
    ) -> tuple[Situation, Outlook | None]:
        known = diagnosis or _stored_diagnosis(session, row)
        again = requeues(session, row.job, self.returns.drivers.slurm)
        found = situation_of(session, row, state, known, asked, now, self.rules, self._leases(now), again)
        return (found, None) if self.planner is None or again else with_plan(session, self.planner, state, found, now)

    def state_of(self, row: RecoveryRow) -> Recovery:
        return STATE.validate_python(row.state)

    def unfinished(self) -> list[int]:
        """Recoveries that are not over, oldest first."""
        with self.store.reading() as session:
            return list(session.scalars(select(RecoveryRow.id).where(RecoveryRow.over.is_(False)).order_by(RecoveryRow.id)))

    def advance(self, recovery_id: int) -> bool:
        """Do for one recovery what can be done now; True where that changed something. Writes only then."""
        with self.store.reading() as session:
            row = session.get_one(RecoveryRow, recovery_id)
            undiagnosed = row.stage == Stage.DETECTED.value
            now = self.clock()
            if undiagnosed and awaits_leases(session, row.job, row.generation, self.reviewed(), self._leases_known(now), now):
                return False
            if not undiagnosed and not self._news(session, row):
                return False
        if undiagnosed:
            self._diagnose(recovery_id)
        with self.store.writing() as session:
            row = self._locked(session, recovery_id)
            for event in self._news(session, row):
                self._apply(session, row, event)
        return True

    def _news(self, session: Session, row: RecoveryRow) -> list[Event]:
        """What has happened since, if it changes anything."""
        state, now = STATE.validate_python(row.state), self.clock()
        events = observations(session, state, row.created_at, now)
        if state.stage in (Stage.PLANNED, Stage.ACTED):
            leases = self._leases(now)
            events.append(NodesLost(now, lost_of(session, row, leases)))
            events.append(NodesLost(now, cut_off_of(session, row, leases), "cut off from the others"))
        events.append(Tick(now))
        changed, commands = state, 0
        for event in events:
            changed, given = step(changed, event, self.limits)
            commands += len(given)
        return events if changed != state or commands else []

    def _leases_known(self, now: float) -> bool:
        """After our own start every lease is given time to be renewed before any is judged."""
        return now >= self.started_at + LEASE_GRACE_SECONDS

    def _leases(self, now: float) -> LeaseReview:
        """Until leases are known nobody is silent; who renewed is known at once."""
        found = self.reviewed()
        return found if self._leases_known(now) else replace(found, silent=(), unjudged=(), why="")

    def _claim(self, recovery_id: int) -> tuple[int, int] | None:
        """The incident to diagnose and how many reports there are of its failure, where nobody else is at it."""
        now = self.clock()
        with self.store.writing() as session:
            row = self._locked(session, recovery_id)
            if row.stage != Stage.DETECTED.value or (row.claimed_until > now and row.claimed_by != self.name):
                return None
            row.claimed_by, row.claimed_until = self.name, now + CLAIM_SECONDS
            return row.incident_id, len(failures_of(session, row.job, row.generation))

    def _diagnose(self, recovery_id: int) -> None:
        claimed, started = self._claim(recovery_id), self.clock()
        if claimed is None:
            return
        incident_id, reports = claimed
        try:
            diagnosis = self.diagnose(incident_id)
        except Exception:
            log.exception("incident %s could not be diagnosed", incident_id)
            diagnosis = not_established(incident_id)
        if not diagnosis.is_failure:
            diagnosis = Diagnosis.of(
                load_taxonomy()[UNKNOWN], "it failed, and nothing that was read says why", inputs=diagnosis.inputs
            )
        with self.store.writing() as session:
            row = self._locked(session, recovery_id)
            if row.stage != Stage.DETECTED.value or len(failures_of(session, row.job, row.generation)) != reports:
                # What came meanwhile may be the cause: it is looked for anew.
                return
            now = self.clock()
            incident = session.get_one(Incident, row.incident_id)
            incident = apply_diagnosis(session, incident, diagnosis, now, seconds=now - started)
            row.incident_id = incident.id
            row.fingerprint = incident.fingerprint
            session.flush()
            self.returns.note_faults(session, diagnosis, now)
            self._apply(session, row, Diagnosed(now, f"{diagnosis.reason}: {diagnosis.summary}"), diagnosis)

    def tell(self, session: Session, recovery_id: int, event: Event) -> RecoveryRow:
        """An event from outside (an approval, an agent's answer) in the caller's transaction."""
        row = self._locked(session, recovery_id)
        self._apply(session, row, event)
        return row

    def answered(self, session: Session, command: CommandRow, status: str, generation: int, detail: str) -> None:
        """An agent's answer to a command of an action; a second one changes nothing."""
        assert command.recovery_id is not None, "commands of actions belong to recoveries"
        row = self._locked(session, command.recovery_id)
        session.refresh(command)
        if command.status is not None:
            return
        now = self.clock()
        command.status, command.detail, command.answered_generation, command.answered_at = status, detail, generation, now
        session.flush()
        of_action = session.scalars(select(CommandRow).where(CommandRow.action_id == command.action_id)).all()
        action = session.get_one(ActionRow, command.action_id)
        # A node that is left out may be dead: nobody waits for its answer.
        left_out = set(action.decision["exclude"])
        complete = all(other.status == "done" for other in of_action if other.node not in left_out)
        if complete or status not in ("done", "refused"):
            action.state, action.detail, action.ended_at = ("done" if complete else status), detail, now
        newest = session.scalar(select(func.max(ActionRow.id)).where(ActionRow.recovery_id == row.id))
        # What an action before the present one came to says nothing about the present one.
        if action.id == newest:
            self._apply(session, row, Reported(now, status, generation, f"{command.node}: {detail}", complete))

    def _locked(self, session: Session, recovery_id: int) -> RecoveryRow:
        job = session.scalar(select(RecoveryRow.job).where(RecoveryRow.id == recovery_id))
        hold_lock(session, f"job:{job}")
        return session.get_one(RecoveryRow, recovery_id, populate_existing=True)

    def _apply(self, session: Session, row: RecoveryRow, event: Event, diagnosis: Diagnosis | None = None) -> None:
        """Step the workflow by `event` and by all that its commands answer at once."""
        state = STATE.validate_python(row.state)
        before = state
        events = [event]
        while events:
            old = state
            state, commands = step(state, events.pop(0), self.limits)
            self._tell_people(session, row, old, state)
            for command in commands:
                answer = self._perform(session, row, state, command, diagnosis)
                if answer is not None:
                    events.append(answer)
        if state != before:
            row.state = STATE.dump_python(state, mode="json")
            row.stage = state.stage.value
            row.updated_at = self.clock()
        row.over = state.is_over
        if row.directive is None and is_settled(state):
            row.directive = decided_directive(row.id, row.incident_id, state)
            publish_event(session, "directive.decided", str(row.id), row.directive, self.clock())
        session.flush()

    def _perform(
        self, session: Session, row: RecoveryRow, state: Recovery, command: Command, diagnosis: Diagnosis | None
    ) -> Event | None:
        now = self.clock()
        match command:
            case Decide():
                situation, outlook = self._situation(session, row, state, command, diagnosis, now)
                if outlook is not None:
                    tell_prices(session, row.incident_id, outlook, now)
                return Decided(now, decide(situation))
            case AskApproval():
                incident = session.get_one(Incident, row.incident_id)
                move(session, incident, IncidentState.WAITING_FOR_APPROVAL, "a person has to approve the action", at=now)
                return None
            case Localise():
                why = self.localise(session, row, command.until)
                return None if why is None else Localised(now, why)
            case Plan():
                return self._plan(session, row, state, now)
            case Act():
                carry_out(session, row, len(state.trail), command, now, self.returns)
                return None
            case Notify():
                notify(session, row, command, len(state.trail), now)
                return None

    def _plan(self, session: Session, row: RecoveryRow, state: Recovery, now: float) -> Planned | Withheld | None:
        decision = state.decision
        if decision is not None and decision.action in CLUSTER_ACTIONS:
            # Approval may have come long after the decision.
            verdict = review(decision.exclude, fleet_of(session, now), now, frozen(session))
            if not verdict.allowed:
                return Withheld(now, f"not let through any more: {verdict.sentence}")
        if (
            self.planner is not None
            and decision is not None
            and (decision.exclude and decision.use)
            and self.planner.settle(session, row, decision, now)
        ):
            return None
        return planned(session, row, decision, self.returns.drivers.slurm, now)

    def _tell_people(self, session: Session, row: RecoveryRow, old: Recovery, new: Recovery) -> None:
        """Timeline entries with durations, and the incident's state, for what is new on the trail."""
        previous: Step = old.trail[-1]
        for entry in new.trail[len(old.trail) :]:
            again = entry.stage is Stage.DIAGNOSED and previous.stage is not Stage.DETECTED
            if entry.stage is not Stage.DIAGNOSED or again:
                data: dict[str, Any] = {"recovery": row.id, "stage": entry.stage.value}
                if entry.stage is Stage.DECIDED and new.decision is not None:
                    data["decision"] = DECISION.dump_python(new.decision, mode="json")
                kind = "escalated" if again else entry.stage.value
                add_timeline(session, row.incident_id, kind, entry.why, data=data, seconds=entry.at - previous.at, at=entry.at)
            if entry.stage in (Stage.VERIFIED, Stage.STOPPED):
                move(session, session.get_one(Incident, row.incident_id), IncidentState.VERIFIED, entry.why, at=entry.at)
            previous = entry
        if new.superseded and not old.superseded and old.stage is not Stage.PLANNED:
            row.relaunches += 1


def _stored_diagnosis(session: Session, row: RecoveryRow) -> Diagnosis:
    document = session.get_one(Incident, row.incident_id).diagnosis
    return TypeAdapter(Diagnosis).validate_python(document) if document else not_established(row.incident_id)
