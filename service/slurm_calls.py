"""Makes the calls to Slurm that a recovery wants: durably, looked at before and after, tried again with growing pauses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import TypeAdapter
from sqlalchemy import select

from recovery.drivers.slurm import Carried, JobGoal, Run, SlurmSite, carry_out
from recovery.states import Reported
from service.driver_calls import ask_slurm
from service.recoveries import Recoveries
from service.situations import frozen
from service.store import Store
from service.store.access import audit
from service.store.recoveries import ActionRow
from service.store.slurm import SchedulerCall
from service.timeline import add_timeline

__all__ = ["SlurmCalls"]

GOAL = TypeAdapter(JobGoal)
MAX_ATTEMPTS = 30
# A call belongs to whoever makes it for this long at most: several commands, each with its own time limit.
CLAIM_COMMANDS = 20
LONGEST_PAUSE = 20.0


@dataclass(slots=True)
class SlurmCalls:
    """Works off pending calls, whoever stored them."""

    store: Store
    clock: Callable[[], float]
    recoveries: Recoveries
    site: SlurmSite
    run: Run = ask_slurm

    def work(self) -> bool:
        """Make what is due, in order; False where nothing was."""
        done = False
        while (claimed := self._claim()) is not None:
            call_id, goal = claimed
            self._settle(call_id, carry_out(goal, self.site, self.run))
            done = True
        return done

    def _claim(self) -> tuple[int, JobGoal] | None:
        now = self.clock()
        due = (
            select(SchedulerCall)
            .where(SchedulerCall.state == "pending", SchedulerCall.claimed_until <= now)
            .order_by(SchedulerCall.id)
            .limit(1)
        )
        with self.store.reading() as session:
            if frozen(session) is not None or session.scalars(due).first() is None:
                return None
        with self.store.writing() as session:
            row = session.scalars(due.with_for_update()).first()
            if row is None:
                return None
            row.attempts += 1
            row.claimed_until = now + CLAIM_COMMANDS * self.site.timeout_seconds
            return row.id, GOAL.validate_python(row.goal)

    def _settle(self, call_id: int, carried: Carried) -> None:
        with self.store.writing() as session:
            row = session.get_one(SchedulerCall, call_id, populate_existing=True)
            if row.state != "pending":
                return
            now = self.clock()
            row.did, row.detail = [*row.did, *carried.did], carried.detail[:4096]
            row.claimed_until = now + min(0.5 * 2.0 ** min(row.attempts, 8), LONGEST_PAUSE)
            if not carried.final and row.attempts < MAX_ATTEMPTS:
                return
            row.state, row.ended_at = ("done" if carried.done else "failed"), now
            action = session.get_one(ActionRow, row.action_id)
            action.state, action.detail, action.ended_at = row.state, carried.detail[:4096], now
            facts = {"commands": row.did, "goal": row.goal, "recovery": row.recovery_id}
            audit(session, "pitstop", f"slurm.{row.goal['verb']}", row.job, carried.detail, facts, now)
            text = f"Slurm: {carried.detail}" + (f" ({'; '.join(row.did)})" if row.did else "")
            add_timeline(session, row.incident_id, "requeued", text, data=facts, at=now)
            session.flush()
            if not carried.done:
                # Once it is done, the next thing heard is the attempt that Slurm starts.
                self.recoveries.tell(session, row.recovery_id, Reported(now, "failed", row.generation, carried.detail))
