"""Takes nodes out and brings them back, durably: a return's state, its calls and what people see are one transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from pydantic import TypeAdapter
from sqlalchemy import select
from sqlalchemy.orm import Session

from recovery.decision import Mode
from recovery.drivers.command import Operation, Values, render
from recovery.node_return import (
    DEFAULT_RETURN_MODES,
    AskApproval,
    Command,
    Cordon,
    CordonedByOthers,
    Event,
    Faulted,
    Part,
    Phase,
    Probe,
    Probed,
    RepairNoted,
    ReturnState,
    Terms,
    Tick,
    Uncordon,
    Uncordoned,
    step,
)
from rules.diagnosis import Diagnosis
from rules.signal import Role, Trust
from service.fleet import HELD, OUT, busy_nodes, fleet_of
from service.site_drivers import SiteDrivers
from service.situations import MODES
from service.store import Store
from service.store.access import Switch, audit
from service.store.database import hold_lock
from service.store.events import publish_event
from service.store.fleet import DriverCall, NodeReturn, active_return
from service.store.jobs import Node
from service.timeline import add_timeline

__all__ = ["PROBATION", "NodeReturns", "return_terms"]

STATE = TypeAdapter(ReturnState)
PROBATION = "probation_seconds"
ACTOR = "pitstop"


def return_terms(session: Session) -> Terms:
    """Modes of the parts and the length of the probation, as operators set them."""
    modes, probation = session.get(Switch, MODES), session.get(Switch, PROBATION)
    given = modes.value if modes is not None else {}
    seconds = float(probation.value["seconds"]) if probation is not None else Terms().probation_seconds
    return Terms({part: Mode(given.get(part.value, DEFAULT_RETURN_MODES[part])) for part in Part}, seconds)


@dataclass(slots=True)
class NodeReturns:
    """The runner. Its methods that take a session belong to the caller's transaction. `drivers`: the site's own commands."""

    store: Store
    clock: Callable[[], float]
    drivers: SiteDrivers = field(default_factory=SiteDrivers)

    def take_out(
        self,
        session: Session,
        node: str,
        *,
        key: str,
        why: str,
        incident: int | None,
        recovery: int | None,
        generation: int,
        reset: bool,
    ) -> NodeReturn:
        """Cordon a node. The same key takes it out once; a node that is out already stays with the isolation that it has."""
        hold_lock(session, f"node:{node}")
        known = session.scalar(select(NodeReturn).where(NodeReturn.key == key)) or active_return(session, node)
        if known is not None:
            return known
        now = self.clock()
        state, commands = ReturnState.taken_out(node, now, why)
        row = NodeReturn(
            key=key,
            node=node,
            recovery_id=recovery,
            incident_id=incident,
            generation=generation,
            reset_gpu=reset,
            phase=state.phase.value,
            state=STATE.dump_python(state, mode="json"),
            over=False,
            taken_at=now,
        )
        session.add(row)
        session.flush()
        self._tell_people(session, row, "cordoned", why, now)
        for command in commands:
            self._perform(session, row, command, now)
        return row

    def note_faults(self, session: Session, diagnosis: Diagnosis, now: float) -> None:
        """A new fault, by its own word, of a node that is on its way back sends it to the start."""
        named = {item.node for item in diagnosis.evidence if item.role is Role.ROOT and item.trust is not Trust.JOB}
        for node in named - {None}:
            back = active_return(session, str(node))
            if back is not None:
                self.tell(session, back.id, Faulted(now, diagnosis.summary))

    def tell(self, session: Session, return_id: int, event: Event) -> NodeReturn:
        """Step by `event` and do what follows."""
        node = session.scalar(select(NodeReturn.node).where(NodeReturn.id == return_id))
        hold_lock(session, f"node:{node}")
        row = session.get_one(NodeReturn, return_id, populate_existing=True)
        before = STATE.validate_python(row.state)
        state, commands = step(before, event, return_terms(session))
        now = self.clock()
        if state != before:
            row.state, row.phase, row.over = STATE.dump_python(state, mode="json"), state.phase.value, state.is_over
            for phase, _, why in state.trail[len(before.trail) :]:
                self._tell_people(session, row, phase, why, now)
            if state.phase is Phase.RETURNED:
                row.returned_at = now
            if state.phase is Phase.CANCELLED and isinstance(event, Uncordoned):
                row.cancelled_by = event.by
            if state.is_over:
                _mark(session, row.node, "ready")
            session.flush()
        for command in commands:
            self._perform(session, row, command, now)
        session.flush()
        return row

    def would_call(self, node: str, incident: int | None, generation: int, *, why: str, reset: bool) -> list[str]:
        """The exact calls that taking this node out would make."""
        wanted = (Operation.CORDON, Operation.RESET_GPU) if reset else (Operation.CORDON,)
        values = Values(node, "dry-run", incident="" if incident is None else str(incident), generation=generation, why=why)
        known = self.drivers.templates
        return [render(operation, known[operation], values).text for operation in wanted if operation in known]

    def state_of(self, row: NodeReturn) -> ReturnState:
        return STATE.validate_python(row.state)

    def tick(self) -> bool:
        """Let time pass for every node that is on its way; True where that changed something."""
        now, changed = self.clock(), False
        with self.store.reading() as session:
            terms = return_terms(session)
            due = [
                row.id
                for row in session.scalars(select(NodeReturn).where(NodeReturn.phase == Phase.PROBATION.value))
                if step(self.state_of(row), Tick(now), terms)[0] != self.state_of(row)
            ]
        for return_id in due:
            with self.store.writing() as session:
                self.tell(session, return_id, Tick(now))
            changed = True
        return changed

    def called(self, session: Session, call: DriverCall, done: bool, detail: str, holder: str | None = None) -> None:
        """What became of a call to the site's own tools. `holder`: others who hold the node, where that was found."""
        now = self.clock()
        call.state, call.detail, call.ended_at = ("done" if done else "failed"), detail[:4096], now
        row = session.get_one(NodeReturn, call.return_id)
        operation = Operation(call.operation)
        audit(
            session,
            ACTOR,
            f"driver.{operation.value}",
            call.node,
            detail,
            {"call": call.text, "key": call.key, "done": done},
            now,
        )
        if holder is not None:
            _mark(session, call.node, HELD)
            self.tell(session, row.id, CordonedByOthers(now, holder))
        elif operation in (Operation.PROBE, Operation.PROBE_PAIR):
            self.tell(session, row.id, Probed(now, operation is Operation.PROBE_PAIR, done, detail or operation.value))
        elif not done:
            self._tell_people(session, row, operation.value, f"failed: {detail}", now)
        elif operation is Operation.RESET_GPU:
            self.tell(session, row.id, RepairNoted(now, "driver", detail or "GPU reset"))
        elif operation is Operation.UNCORDON:
            self.tell(session, row.id, Uncordoned(now, ACTOR, ours=True))

    def _perform(self, session: Session, row: NodeReturn, command: Command, now: float) -> None:
        match command:
            case Cordon():
                _mark(session, row.node, OUT)
                self._call(session, row, Operation.CORDON, now)
                if row.reset_gpu:
                    self._call(session, row, Operation.RESET_GPU, now)
            case Probe(paired=paired):
                self._call(session, row, Operation.PROBE_PAIR if paired else Operation.PROBE, now)
            case Uncordon():
                if not self._call(session, row, Operation.UNCORDON, now):
                    self.tell(session, row.id, Uncordoned(now, ACTOR, ours=True))
            case AskApproval(part=part):
                publish_event(session, "node.approval", row.node, {"return": row.id, "part": part.value}, now)

    def _call(self, session: Session, row: NodeReturn, operation: Operation, now: float) -> bool:
        """Store a call to the site's own tools; False where the site has none for this."""
        template = self.drivers.templates.get(operation)
        if template is None:
            return False
        state = self.state_of(row)
        other = self._good_node(session, row.node, now) if operation is Operation.PROBE_PAIR else ""
        values = Values(
            node=row.node,
            key=f"{row.id}/{operation.value}/{len(state.trail)}",
            other=other,
            incident="" if row.incident_id is None else str(row.incident_id),
            generation=row.generation,
            why=state.why,
        )
        call = render(operation, template, values)
        session.add(
            DriverCall(
                key=call.key,
                return_id=row.id,
                node=row.node,
                operation=operation.value,
                call=asdict(call),
                text=call.text,
                state="pending",
                attempts=0,
                detail="",
                created_at=now,
                claimed_until=0.0,
            )
        )
        session.flush()
        return True

    def _good_node(self, session: Session, node: str, now: float) -> str:
        """A node in service that no job runs on, to be probed with."""
        fleet, busy = fleet_of(session, now), busy_nodes(session)
        free = [facts.name for facts in fleet.nodes.values() if facts.is_alive and facts.cordoned_by is None]
        return next((name for name in free if name != node and name not in busy), "")

    def _tell_people(self, session: Session, row: NodeReturn, what: str, why: str, now: float) -> None:
        text = f"{row.node} {what.replace('_', ' ')}: {why}"
        if row.incident_id is not None:
            add_timeline(session, row.incident_id, f"node.{what}", text, data={"node": row.node, "return": row.id}, at=now)
        audit(session, ACTOR, f"node.{what}", row.node, why, {"return": row.id, "incident": row.incident_id}, now)
        publish_event(session, f"node.{what}", row.node, {"return": row.id, "why": why}, now)


def _mark(session: Session, node: str, state: str) -> None:
    known = session.get(Node, node)
    if known is not None:
        known.state = state
