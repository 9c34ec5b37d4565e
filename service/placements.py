"""Where a job goes on after a decision: as the plan for the whole cluster says, and by whose hand."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy.orm import Session

from recovery.decision import Decision, DirectiveKind
from recovery.drivers.slurm import SlurmSite
from recovery.states import Planned
from service.scheduling import Hand, hand_of
from service.situations import has_agent, nodes_of
from service.store.jobs import Job, current_attempt
from service.store.recoveries import RecoveryRow

__all__ = ["FailurePlanner", "planned"]


class FailurePlanner(Protocol):
    """Plans for the whole cluster after a failure. Its methods belong to the caller's transaction."""

    def after_failure(self, session: Session, job: str, lost: tuple[str, ...], now: float) -> tuple[tuple[str, ...], str] | None:
        """The nodes that the job gets without those lost, and why; None where there is no plan for it."""

    def settle(self, session: Session, row: RecoveryRow, decision: Decision, now: float) -> bool:
        """Set going what other jobs must do for this decision; True where the job is to wait for them, and be told."""


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
