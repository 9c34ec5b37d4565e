"""What the commands of a recovery become: rows for agents, drivers and people, in the transaction of the step that gave them."""

from __future__ import annotations

from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from recovery.decision import CLUSTER_ACTIONS, Action, Decision, DirectiveKind
from recovery.drivers.local import AgentCommand, agent_commands
from recovery.envelope import review
from recovery.states import Act, Notify
from service.fleet import fleet_of
from service.node_returns import NodeReturns
from service.scheduling import Hand, ask_scheduler, hand_of
from service.situations import nodes_of
from service.store.access import audit
from service.store.database import hold_lock
from service.store.events import publish_event
from service.store.incidents import Incident
from service.store.jobs import Job, current_attempt
from service.store.recoveries import ActionRow, CommandRow, Notification, RecoveryRow
from service.timeline import IncidentState, add_timeline, move

__all__ = ["DECISION", "carry_out", "notify"]

DECISION = TypeAdapter(Decision)


def carry_out(session: Session, row: RecoveryRow, position: int, act: Act, now: float, returns: NodeReturns) -> None:
    """Store the action with its commands to agents, and take out of service what it isolates. `position`: length of the trail."""
    decision = act.decision
    action = ActionRow(
        key=f"{row.id}/{act.generation}/{position}/{decision.action.value}",
        recovery_id=row.id,
        incident_id=row.incident_id,
        job=row.job,
        action=decision.action.value,
        mode=decision.mode.value,
        decided_by="policy",
        generation=act.generation,
        decision=DECISION.dump_python(decision, mode="json"),
        state="issued",
        issued_at=now,
    )
    session.add(action)
    session.flush()
    audit(session, "policy", f"action.{decision.action.value}", row.job, decision.sentence, {"action": action.id}, now)
    if decision.directive is not DirectiveKind.STOP and decision.action is not Action.RECONFIGURE:
        row.relaunches += 1
    nodes = nodes_of(session.get_one(Job, row.job), current_attempt(session, row.job))
    told_agents: tuple[AgentCommand, ...] = ()
    if hand_of(session, row.job, row.generation, decision, returns.drivers.slurm) is Hand.REQUEUE:
        ask_scheduler(session, row, action, act, now)
    else:
        hold_lock(session, "commands")
        told_agents = agent_commands(act, recovery=str(row.id), job=row.job, nodes=nodes)
    for told in told_agents:
        session.add(
            CommandRow(
                key=f"{action.id}/{told.key}",
                action_id=action.id,
                recovery_id=row.id,
                node=told.node,
                job=told.job,
                generation=told.generation,
                kind=told.kind,
                args=dict(told.args),
                deadline=told.deadline,
                created_at=now,
            )
        )
        publish_event(session, "command.issued", told.node, {"job": told.job, "kind": told.kind}, now)
    if decision.action in CLUSTER_ACTIONS:
        for node in review(decision.exclude, fleet_of(session, now), now).take:
            returns.take_out(
                session,
                node,
                key=f"{action.id}/{node}",
                why=decision.why[0],
                incident=row.incident_id,
                recovery=row.id,
                generation=act.generation,
                reset=decision.action is Action.RESET_GPU,
            )
    incident = session.get_one(Incident, row.incident_id)
    move(session, incident, IncidentState.RECOVERING, decision.directive.value, actor="policy", at=now)


def notify(session: Session, row: RecoveryRow, message: Notify, position: int, now: float) -> None:
    """Store a notification; service/notifications sends it where channels are set up."""
    job = session.get_one(Job, row.job)
    recipient = (job.contact or job.owner) if message.audience.value == "owner" else None
    session.add(
        Notification(
            key=f"{row.id}/{position}/{message.audience.value}",
            incident_id=row.incident_id,
            job=row.job,
            audience=message.audience.value,
            recipient=recipient,
            text=message.text,
            channels={},
            created_at=now,
            due_at=now,
        )
    )
    add_timeline(
        session,
        row.incident_id,
        "notified",
        f"the {message.audience.value} {'are' if message.audience.value == 'operators' else 'is'} told: {message.text}",
        data={"audience": message.audience.value, "recipient": recipient},
        at=now,
    )
