"""Where a job goes on after a decision: as the plan for the whole cluster says, and by whose hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from recovery.decision import Decision, DirectiveKind
from recovery.drivers.slurm import SlurmSite
from recovery.planning.alternatives import AlternativeKind
from recovery.policy import Situation, taken_out
from recovery.states import Planned, Recovery
from service.scheduling import Hand, hand_of
from service.situations import has_agent, nodes_of, ranks_to_do_without
from service.store.jobs import Attempt, Job, current_attempt
from service.store.recoveries import RecoveryRow
from service.timeline import add_timeline

__all__ = ["FailurePlanner", "Outlook", "planned", "tell_prices", "tell_taken_back", "with_plan"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """Where a plan lets a failed job go on, and why; `adapts`: in the processes that are left. `alternatives`: all ways that were
    priced, as documents, the best first."""

    nodes: tuple[str, ...]
    why: str
    adapts: bool = False
    alternatives: tuple[dict[str, Any], ...] = ()


class FailurePlanner(Protocol):
    """Plans for the whole cluster after a failure. Its methods belong to the caller's transaction."""

    def after_failure(
        self, session: Session, job: str, lost: tuple[str, ...], now: float, ended: frozenset[int] = frozenset()
    ) -> Outlook | None:
        """What the job gets without the nodes lost; None where there is no plan for it. `ended`: the ranks that it does without
        where all its others can go on in their processes, else empty."""

    def settle(self, session: Session, row: RecoveryRow, decision: Decision, now: float) -> bool:
        """Set going what other jobs must do for this decision; True where the job is to wait for them, and be told."""


def with_plan(
    session: Session, planner: FailurePlanner, state: Recovery, situation: Situation, now: float
) -> tuple[Situation, Outlook | None]:
    """The situation with what a plan for the whole cluster says of it, and what that was chosen from."""
    lost = taken_out(situation)
    ended = ranks_to_do_without(session, state, situation, lost)
    plan = planner.after_failure(session, state.job, lost, now, ended) if lost or ended else None
    if plan is None or not (lost or plan.adapts):
        return situation, plan
    job = replace(situation.job, planned=plan.nodes, planned_why=plan.why, adapts=plan.adapts)
    return replace(situation, job=job), plan


def tell_prices(session: Session, incident: int, outlook: Outlook, now: float) -> None:
    """The ways that were priced, on the incident's timeline, where adapting the pipelines was one of them."""
    if all(item["kind"] != AlternativeKind.ADAPT_PIPELINE.value for item in outlook.alternatives):
        return
    priced = (
        f"{item['kind'].replace('_', ' ')}: {item['against'] or format(item['mean_waf'], '.3g') + ' FLOP/s'}"
        for item in outlook.alternatives
    )
    text = f"weighted FLOP/s on average until the next failure is expected: {'; '.join(priced)}"
    add_timeline(session, incident, "priced", text, data={"alternatives": list(outlook.alternatives)}, at=now)


def tell_taken_back(
    session: Session, job: str, before: Attempt, ranks: Sequence[Mapping[str, Any]], generation: int, now: float
) -> None:
    """On the timeline of a failure that was answered by adapting: ranks are back, beside others whose processes go on."""
    was = {int(rank["rank"]): rank.get("pid") for rank in before.ranks}
    present = {int(rank["rank"]): rank.get("pid") for rank in ranks}
    back = sorted(set(present) - set(was))
    stayed = [rank for rank in was if rank in present]
    if not back or not stayed or any(was[rank] != present[rank] for rank in stayed):
        return
    row = session.scalar(select(RecoveryRow).where(RecoveryRow.job == job).order_by(RecoveryRow.id.desc()).limit(1))
    if row is None or ((row.state.get("decision") or {}).get("directive")) != DirectiveKind.ADAPT.value:
        return
    text = f"ranks {back} are taken back in generation {generation}; the others went on in their processes"
    add_timeline(session, row.incident_id, "taken_back", text, data={"ranks": back, "generation": generation}, at=now)


def planned(
    session: Session, row: RecoveryRow, decision: Decision | None, site: SlurmSite | None, now: float, why: str = ""
) -> Planned:
    """Where the job goes on, and whether an agent or the scheduler starts it there. `why`: of the plan, where there is one."""
    job = session.get_one(Job, row.job)
    nodes = nodes_of(job, current_attempt(session, row.job))
    agents = has_agent(session, nodes, now)
    if decision is not None and decision.directive is DirectiveKind.STOP:
        why = why or "every process of the job is to be stopped"
    else:
        where = ", ".join((decision.use if decision is not None else ()) or nodes) or "where it ran"
        why = f"goes on on {where} under generation {job.generation + 1}" + (f": {why}" if why else "")
    hand = hand_of(session, row.job, row.generation, decision, site)
    if hand is Hand.REQUEUE:
        without = f" without {', '.join(decision.exclude)}" if decision is not None and decision.exclude else ""
        asked = f"Slurm is asked to requeue it{without}; it goes on under generation {job.generation + 1}"
        return Planned(now, job.generation, True, asked, queued=True)
    if hand is Hand.QUEUED:
        return Planned(now, job.generation, False, "Slurm has requeued it by itself: it starts when its turn comes", queued=True)
    if not agents:
        why += "; no agent is there, its launcher is to do it"
        if decision is not None and decision.directive is not DirectiveKind.STOP:
            row.relaunches += 1
    return Planned(now, job.generation, agents, why, decision=decision)
