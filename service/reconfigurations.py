"""Carrying a plan out on several jobs: each is moved by a recovery of its own, who gives nodes up before who gets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.orm import Session

from recovery.decision import Action, Audience, Decision, DirectiveKind, Mode
from recovery.states import Decided, Recovery, Stage, Step
from rules.diagnosis import Diagnosis
from rules.taxonomy import load_taxonomy
from service.incidents import apply_diagnosis, open_incident
from service.placements import planned
from service.recoveries import STATE, Recoveries
from service.situations import frozen, nodes_of, step_before
from service.store import Store
from service.store.database import hold_lock
from service.store.events import publish_event
from service.store.jobs import Job, JobState, current_attempt
from service.store.plans import PlanRow, PlanState, acting_plans
from service.store.recoveries import RecoveryRow, find_recovery, unfinished
from service.timeline import add_timeline

__all__ = ["Reconfigurations"]

REASON = "job_preempted"
# A job that gives nodes up has this long; then the ones that wait for them go on without.
PATIENCE_SECONDS = 120.0
# From here on what a job gave up is free.
GIVEN_UP = frozenset({Stage.ACTED.value, Stage.VERIFIED.value})


@dataclass(slots=True)
class Reconfigurations:
    store: Store
    clock: Callable[[], float]
    recoveries: Recoveries

    def tick(self) -> bool:
        """Take every acting plan as far as it can go now; True where that changed something."""
        with self.store.reading() as session:
            jobs = {job for plan in acting_plans(session) for job in _jobs(plan)}
        if not jobs:
            return False
        with self.store.writing() as session:
            # All jobs at once and before the plans: a recovery holds its job when it comes to the plans, and to the commands.
            hold_lock(session, *(f"job:{job}" for job in jobs))
            hold_lock(session, "plans")
            # One that has begun to act meanwhile waits for the next time.
            return sum(self._advance(session, plan) for plan in acting_plans(session) if _jobs(plan) <= jobs) > 0

    def _advance(self, session: Session, plan: PlanRow) -> bool:
        now = self.clock()
        parts = [dict(part) for part in plan.parts]
        changed = False
        for part in parts:
            if not _has_begun(session, part):
                changed = self._begin_when_free(session, plan, part, parts, now) or changed
        if changed:
            plan.parts = parts
        over = [_row(session, part) for part in parts]
        if all(part.get("failed") or (row is not None and row.over) for part, row in zip(parts, over, strict=True)):
            good = all(row is not None and row.stage == Stage.VERIFIED.value for row in over)
            plan.state, plan.ended_at = (PlanState.VERIFIED if good else PlanState.FAILED).value, now
            publish_event(session, f"plan.{plan.state}", str(plan.id), {}, now)
            changed = True
        return changed

    def _begin_when_free(
        self, session: Session, plan: PlanRow, part: dict[str, Any], parts: list[dict[str, Any]], now: float
    ) -> bool:
        givers = [other for other in parts if other["job"] in part["after"]]
        rows = [_row(session, giver) for giver in givers]
        free = all(row is not None and row.stage in GIVEN_UP for row in rows)
        broken = next(
            (
                giver["job"]
                for giver, row in zip(givers, rows, strict=True)
                if giver.get("failed") or (row is not None and row.over and row.stage not in GIVEN_UP)
            ),
            None,
        )
        late = plan.decided_at is not None and now > plan.decided_at + PATIENCE_SECONDS
        if not free and broken is None and not late:
            return False
        why = None if free else f"{broken or ', '.join(part['after'])} did not give its nodes up"
        if part["hit"]:
            self._tell_hit(session, plan, part, why, now)
        elif why is None:
            self._begin(session, plan, part, now)
        else:
            part["failed"] = why
        return True

    def _tell_hit(self, session: Session, plan: PlanRow, part: dict[str, Any], why: str | None, now: float) -> None:
        """The failed job waited at `planned` for its nodes."""
        row = _row(session, part)
        part["told"] = True
        decision = None if row is None else STATE.validate_python(row.state).decision
        if row is None or decision is None or row.over:
            part["failed"] = "its recovery ended before"
            return
        if why is None:
            decision = replace(decision, use=tuple(part["nodes"]))
            self.recoveries.tell(session, row.id, planned(session, row, decision, None, now, f"plan {plan.id}"))
            return
        part["failed"] = why
        nodes = nodes_of(session.get_one(Job, row.job), current_attempt(session, row.job))
        own = tuple(node for node in part["nodes"] if node in nodes)
        ranks = len(own) / max(1, len(nodes)) * session.get_one(Job, row.job).ranks
        minimum = session.get_one(Job, row.job).min_ranks
        if own and minimum is not None and ranks >= minimum:
            decision = replace(decision, directive=DirectiveKind.SHRINK, use=own, why=(*decision.why, why))
        else:
            decision = replace(
                decision,
                action=Action.STOP,
                directive=DirectiveKind.STOP,
                use=(),
                audience=Audience.OPERATORS,
                why=(*decision.why, why, "too few nodes are left"),
            )
        self.recoveries.tell(session, row.id, planned(session, row, decision, None, now, why))

    def _begin(self, session: Session, plan: PlanRow, part: dict[str, Any], now: float) -> None:
        """Move a job that did not fail: an incident says so to its owner, a recovery does it."""
        name = str(part["job"])
        job, attempt = session.get(Job, name), current_attempt(session, name)
        if job is None or attempt is None or job.state != JobState.RUNNING:
            part["failed"] = "it does not run any more"
            return
        against = frozen(session)
        if against is not None or unfinished(session, name) or find_recovery(session, name, attempt.number, job.generation):
            part["failed"] = "it is recovering from a failure" if against is None else f"Pitstop is frozen {against}"
            return
        before, nodes = nodes_of(job, attempt), tuple(part["nodes"])
        summary = f"plan {plan.id} moves {name} from {', '.join(before)} to {', '.join(nodes)} ({plan.cause})"
        incident = open_incident(
            session,
            kind="plan",
            fingerprint=f"plan {plan.id} {name}"[:64],
            summary=summary,
            now=now,
            job=name,
            attempt=attempt.number,
        )
        incident = apply_diagnosis(
            session, incident, Diagnosis.of(load_taxonomy()[REASON], summary), now, actor="plan", seconds=0.0
        )
        state = Recovery.detected(
            name, attempt.number, job.generation, step_before(session, name, job.generation, None), now, summary
        )
        state = replace(state, trail=(*state.trail, Step(Stage.DIAGNOSED, now, f"{REASON}: {summary}")))
        row = RecoveryRow(
            incident_id=incident.id,
            job=name,
            attempt=attempt.number,
            generation=job.generation,
            fingerprint=incident.fingerprint,
            stage=state.stage.value,
            state=STATE.dump_python(state, mode="json"),
            relaunches=0,
            created_at=now,
            updated_at=now,
        )
        session.add(row)
        session.flush()
        part["recovery"] = row.id
        directive = DirectiveKind.SHRINK if len(nodes) < len(before) else DirectiveKind.RESTART
        why = (f"plan {plan.id}, decided by {plan.decided_by}", plan.why)
        add_timeline(session, incident.id, "plan", f"plan {plan.id}: {plan.why}", data={"plan": plan.id}, at=now)
        self.recoveries.tell(
            session, row.id, Decided(now, Decision(Action.RECONFIGURE, directive, Mode.AUTO, why, directive.value, use=nodes))
        )


def _jobs(plan: PlanRow) -> frozenset[str]:
    return frozenset(str(part["job"]) for part in plan.parts)


def _row(session: Session, part: dict[str, Any]) -> RecoveryRow | None:
    return None if part["recovery"] is None else session.get(RecoveryRow, part["recovery"])


def _has_begun(session: Session, part: dict[str, Any]) -> bool:
    if part.get("failed"):
        return True
    if not part["hit"]:
        return part["recovery"] is not None
    # A failed job whose nodes were free at once has gone on by itself.
    row = _row(session, part)
    waits = row is not None and row.stage in (Stage.DECIDED.value, Stage.APPROVED.value, Stage.LOCALISED.value)
    return bool(part.get("told")) or not waits
