"""Plans for the whole cluster: the table of single events kept ready, proposals when something changed, and their approval."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from recovery.decision import Action, Decision, DirectiveKind, Mode
from recovery.planning.adapting import never, priced_worker_loss
from recovery.planning.alternatives import AlternativeKind
from recovery.planning.cluster import ClusterState, Trigger, TriggerKind, parse_trigger, table_of
from recovery.planning.document import alternative_document, proposal_document
from recovery.planning.planner import PlanTable
from recovery.planning.proposal import Proposal, propose, reason_of
from recovery.planning.tasks import PlanError, running_seconds
from service.pipeline_plans import PipelinePlans
from service.placements import Outlook
from service.plan_state import PLANNED, StoredCluster, note_step_times, restricted, stored_cluster
from service.situations import frozen, modes_of
from service.store import Store
from service.store.access import audit
from service.store.database import Clock, hold_lock
from service.store.events import publish_event
from service.store.jobs import Job, current_attempt
from service.store.plans import UNDECIDED, PlanRow, PlanState, acting_plans
from service.store.recoveries import RecoveryRow, unfinished
from service.timeline import add_timeline

__all__ = ["PlanRefused", "Plans", "parts_of"]

log = logging.getLogger("pitstop.plans")

# A plan that nothing forces must bring at least this share more than leaving things as they are.
WORTHWHILE = 0.01


class PlanRefused(Exception):
    """A plan that cannot be carried out now; the message says why."""


def parts_of(proposal: Proposal) -> list[dict[str, Any]]:
    """One part a job that is re-formed, with the jobs that have to give it nodes first."""
    owners = proposal.after.owners
    changed = set(proposal.changed)
    parts = []
    for name in proposal.changed:
        nodes = proposal.placement.nodes.get(name, ())
        givers = {owners[node] for node in nodes if node in owners} & changed - {name}
        hit = proposal.after.task(name).hit
        parts.append({"job": name, "nodes": list(nodes), "after": sorted(givers), "recovery": None, "hit": hit})
    return parts


@dataclass(slots=True)
class Plans:
    """The methods that take a session belong to the caller's transaction."""

    store: Store
    clock: Clock
    pipelines: PipelinePlans
    _table: PlanTable | None = None
    _seconds: float = 0.0
    _before: ClusterState | None = None
    _considered: str = ""
    _notes: tuple[str, ...] = field(default=())

    def work(self) -> None:
        """The duty: note step times, keep the table of the present state, and propose what its change asks for."""
        now = self.clock()
        with self.store.reading() as session:
            idle = session.scalar(select(Job.name).where(Job.state.in_(PLANNED)).limit(1)) is None
        if idle:
            # A cluster of thousands of nodes is not read for nothing.
            self._table, self._before, self._notes = None, None, ()
            self.pipelines.prepare(())
            return
        note_step_times(self.store, now)
        with self.store.reading() as session:
            stored = stored_cluster(session, now)
            bound = restricted(session, stored.state)
        self._notes = stored.notes
        self.pipelines.prepare(task.pipeline for task in stored.state.tasks if task.pipeline is not None)
        if all(task.held for task in stored.state.placed) and not any(task.waiting for task in stored.state.tasks):
            self._table, self._before = None, None
            return
        if self._table is None or self._table.stamp != bound.stamp:
            began = time.monotonic()
            self._table = table_of(bound)
            self._seconds = time.monotonic() - began
            # It may be still changing: looked at again when it has stood still for a round.
            return
        if self._considered != stored.state.stamp:
            self._consider(stored.state, bound, now)

    def _consider(self, state: ClusterState, bound: ClusterState, now: float) -> None:
        with self.store.writing() as session:
            hold_lock(session, "plans")
            if acting_plans(session):
                return
            cause = self._cause(state)
            for old in session.scalars(select(PlanRow).where(PlanRow.state.in_(UNDECIDED), PlanRow.stamp != state.stamp)):
                old.state, old.ended_at = PlanState.STALE.value, now
            proposal = propose(bound, [])
            if _worthwhile(proposal):
                self._store(session, proposal, cause, PlanState.ACTING.value, now, decided_by="policy")
            else:
                proposal = propose(state, [])
                known = session.scalar(select(PlanRow.id).where(PlanRow.stamp == state.stamp).limit(1))
                if known is None and _worthwhile(proposal):
                    self._store(session, proposal, cause, self._open_state(session, proposal), now)
        self._before, self._considered = state, state.stamp

    def _cause(self, state: ClusterState) -> str:
        """What has changed since the state that was looked at before, in the words of triggers."""
        before = self._before
        if before is None:
            return "the state as it was found"
        found: list[Trigger] = []
        for name in sorted({*before.sites, *state.sites}):
            was = name in before.sites and before.sites[name].usable
            now = name in state.sites and state.sites[name].usable
            if was != now:
                found.append(Trigger(TriggerKind.NODE_BACK if now else TriggerKind.NODE_LOST, name))
        old, new = ({task.name: task for task in of.tasks} for of in (before, state))
        found += [Trigger(TriggerKind.TASK_FINISHED, name) for name in sorted({*old} - {*new})]
        found += [Trigger(TriggerKind.TASK_LAUNCHED, name) for name in sorted({*new} - {*old})]
        both = sorted({*new} & {*old})
        found += [
            Trigger(TriggerKind.WEIGHT_CHANGED, name, new[name].weight) for name in both if new[name].weight != old[name].weight
        ]
        return "; ".join(map(str, found)) or "sizes, step times or rates changed"

    def _open_state(self, session: Session, proposal: Proposal) -> str:
        modes = {modes_of(session, session.get(Job, name))[Action.RECONFIGURE] for name in proposal.changed}
        return (PlanState.WAITING if modes <= {Mode.APPROVE, Mode.AUTO} else PlanState.SUGGESTED).value

    def _store(
        self,
        session: Session,
        proposal: Proposal,
        cause: str,
        state: str,
        now: float,
        *,
        decided_by: str | None = None,
        incident: int | None = None,
    ) -> PlanRow:
        row = PlanRow(
            stamp=proposal.before.stamp,
            state=state,
            cause=cause,
            why=proposal.why,
            document=proposal_document(proposal),
            parts=parts_of(proposal),
            incident_id=incident,
            decided_by=decided_by,
            created_at=now,
            decided_at=None if decided_by is None else now,
        )
        session.add(row)
        session.flush()
        if decided_by is not None:
            audit(session, decided_by, "plan.act", f"plan {row.id}", proposal.why, {"plan": row.id, "cause": cause}, now)
        publish_event(session, f"plan.{state}", str(row.id), {"cause": cause, "jobs": list(proposal.changed)}, now)
        return row

    def what_if(self, texts: Sequence[str]) -> tuple[Proposal, StoredCluster]:
        """What would be proposed if this happened to the present state; nothing is stored. Raises PlanError."""
        with self.store.reading() as session:
            stored = stored_cluster(session, self.clock())
        return propose(stored.state, [parse_trigger(text) for text in texts], periods=self.pipelines.period), stored

    def propose_now(self, session: Session, by: str) -> PlanRow:
        """Store the proposal for the present state, for approval. Raises PlanRefused, PlanError."""
        now = self.clock()
        hold_lock(session, "plans")
        state = stored_cluster(session, now).state
        proposal = propose(state, [])
        if not proposal.changed:
            raise PlanRefused(f"nothing is to be changed: {proposal.why}")
        return self._store(session, proposal, f"asked for by {by}", self._open_state(session, proposal), now)

    def approve(self, session: Session, plan: int, by: str, comment: str) -> PlanRow:
        """Carry a proposal out; a stale one becomes so. Raises PlanRefused where it is settled, or the envelope is against it."""
        now = self.clock()
        row = self._open(session, plan)
        against = frozen(session)
        if against is not None:
            raise PlanRefused(f"Pitstop is frozen {against}")
        state = stored_cluster(session, now).state
        if state.stamp != row.stamp:
            row.state, row.ended_at = PlanState.STALE.value, now
            return row
        for part in row.parts:
            task = state.task(part["job"])
            if task.held is not None:
                raise PlanRefused(f"{task.name} may not be moved: {task.held}")
            if len(part["nodes"]) < task.least:
                raise PlanRefused(f"{task.name} would be below its minimum")
            if unfinished(session, task.name):
                raise PlanRefused(f"{task.name} is recovering from a failure")
        row.state, row.decided_by, row.decided_at = PlanState.ACTING.value, by, now
        audit(session, by, "plan.approve", f"plan {row.id}", comment, {"plan": row.id, "why": row.why}, now)
        publish_event(session, "plan.acting", str(row.id), {"by": by}, now)
        return row

    def reject(self, session: Session, plan: int, by: str, comment: str) -> PlanRow:
        """Raises PlanRefused where it is settled already."""
        now = self.clock()
        row = self._open(session, plan)
        row.state, row.decided_by, row.decided_at, row.ended_at = PlanState.REJECTED.value, by, now, now
        audit(session, by, "plan.reject", f"plan {row.id}", comment, {"plan": row.id}, now)
        publish_event(session, "plan.rejected", str(row.id), {"by": by}, now)
        return row

    def _open(self, session: Session, plan: int) -> PlanRow:
        hold_lock(session, "plans")
        row = session.get(PlanRow, plan, populate_existing=True)
        if row is None:
            raise PlanRefused(f"there is no plan {plan}")
        if row.state not in UNDECIDED:
            raise PlanRefused(f"plan {plan} is {row.state}")
        return row

    def after_failure(
        self, session: Session, job: str, lost: tuple[str, ...], now: float, ended: frozenset[int] = frozenset()
    ) -> Outlook | None:
        """As FailurePlanner says; None also where the job has to wait."""
        if not lost:
            return self._after_worker_loss(session, job, ended, now)
        proposal = self._after(session, job, lost, now, bool(ended))
        if proposal is None or job not in proposal.changed:
            return None
        adapts = proposal.chosen.kind is AlternativeKind.ADAPT_PIPELINE
        documents = tuple(alternative_document(item) for item in proposal.alternatives)
        return Outlook(proposal.placement.nodes[job], proposal.why, adapts, documents)

    def _after_worker_loss(self, session: Session, job: str, ended: frozenset[int], now: float) -> Outlook | None:
        """Restart in place beside adapting the pipelines."""
        state = stored_cluster(session, now).state
        task = next((task for task in state.placed if task.name == job), None)
        attempt = current_attempt(session, job)
        if task is None or task.pipeline is None or attempt is None:
            return None
        workers = task.pipeline.of_ranks(ended, session.get_one(Job, job).ranks)
        horizon = running_seconds(state.units, state.rates)
        priced = priced_worker_loss(task, workers or (), horizon, self.pipelines.period) if workers else ()
        if not priced:
            return None
        adapts = priced[0].kind is AlternativeKind.ADAPT_PIPELINE
        documents = tuple(alternative_document(item) for item in priced)
        return Outlook(task.nodes, reason_of(priced, priced[0], horizon), adapts, documents)

    def settle(self, session: Session, row: RecoveryRow, decision: Decision, now: float) -> bool:
        """Begin what other jobs do for this decision; True where the job waits for nodes that they give up."""
        hold_lock(session, "plans")
        if any(part["job"] == row.job for plan in acting_plans(session) for part in plan.parts):
            return False
        proposal = self._after(session, row.job, decision.exclude, now, decision.directive is DirectiveKind.ADAPT)
        if proposal is None or set(proposal.changed) <= {row.job} or row.job not in proposal.changed:
            return False
        cause = "; ".join(map(str, proposal.triggers))
        plan = self._store(session, proposal, cause, PlanState.ACTING.value, now, decided_by="policy", incident=row.incident_id)
        plan.parts = [part | ({"recovery": row.id} if part["job"] == row.job else {}) for part in plan.parts]
        own = next(part for part in plan.parts if part["job"] == row.job)
        if own["after"]:
            waits = ", ".join(own["after"])
            add_timeline(session, row.incident_id, "plan", f"plan {plan.id}: waits for nodes of {waits}", at=now)
        return bool(own["after"])

    def _after(self, session: Session, job: str, lost: tuple[str, ...], now: float, adaptable: bool) -> Proposal | None:
        state = stored_cluster(session, now).state
        if all(task.name != job or not set(task.nodes) & set(lost) for task in state.placed):
            return None
        bound = restricted(session, state, job)
        triggers = [Trigger(TriggerKind.NODE_LOST, node) for node in lost if node in state.task(job).nodes]
        table = self._table if self._table is not None and self._table.stamp == bound.stamp else None
        try:
            return propose(bound, triggers, table, None if adaptable else never, self.pipelines.period)
        except PlanError as problem:
            log.warning("no plan for %s after %s: %s", job, "; ".join(map(str, triggers)), problem)
            return None

    def report(self) -> dict[str, object]:
        """For /readyz: the table that is held here, and what is left out of planning."""
        table = self._table
        return {
            "stamp": None if table is None else table.stamp,
            "events": 0 if table is None else len(table.plans),
            "seconds": round(self._seconds, 4),
            "notes": list(self._notes),
        }


def _worthwhile(proposal: Proposal) -> bool:
    stay = next((item for item in proposal.alternatives if item.kind is AlternativeKind.STAY), None)
    if proposal.chosen.kind is not AlternativeKind.PLAN or not proposal.changed:
        return False
    return stay is None or proposal.gained > WORTHWHILE * stay.accumulated
