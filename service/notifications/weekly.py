"""The week in a message: what failures cost, told on Mondays to whoever hears of `state: weekly`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from recovery.accounts import DAY_SECONDS, Phase
from service.account_tables import Subject, day_rows, failure_rows, job_rows
from service.store import Clock, Store
from service.store.recoveries import Notification

__all__ = ["WEEKLY", "WeeklySummary", "week_text"]

# The state of such a message, for routes to match.
WEEKLY = "weekly"
WEEK_SECONDS = 7 * DAY_SECONDS
# The epoch was a Thursday.
FIRST_MONDAY = 4 * DAY_SECONDS
NAMED = 3


@dataclass(slots=True)
class WeeklySummary:
    """The duty: one message for each week that is over, once, whoever holds the duties. Weeks before its start are not told."""

    store: Store
    clock: Clock

    def work(self) -> None:
        now = self.clock()
        monday = now - (now - FIRST_MONDAY) % WEEK_SECONDS
        week = datetime.fromtimestamp(monday - DAY_SECONDS, UTC).strftime("%G-W%V")
        with self.store.writing() as session:
            if session.scalar(select(Notification.id).where(Notification.key == f"week/{week}")) is not None:
                return
            text = week_text(session, week, monday - WEEK_SECONDS, monday)
            session.add(
                Notification(
                    key=f"week/{week}",
                    incident_id=None,
                    audience="operators",
                    text=text or f"week {week}: no job was accounted for",
                    channels={},
                    created_at=now,
                    state=WEEKLY,
                    due_at=now if text else None,
                )
            )


def week_text(session: Session, week: str, since: float, until: float) -> str | None:
    """The week in a few lines; None where no job ran."""
    # The last day that counts is the one before `until`.
    days = day_rows(session, since, until - 1)
    if not days:
        return None
    hours = sum(sum(day.gpu_hours.values()) for day in days)
    good = sum(day.gpu_hours.get(Phase.PRODUCTIVE.value, 0.0) for day in days)
    reasons = failure_rows(session, since, until, (Subject.REASON,))[Subject.REASON]
    jobs = job_rows(session, since, until - 1, NAMED)
    lines = [
        (
            f"week {week}: {hours:,.1f} GPU-hours, {good / hours:.1%} of them productive; "
            f"{sum(row.failures for row in reasons)} failures cost {sum(row.lost_gpu_hours for row in reasons):,.1f} GPU-hours."
        )
    ]
    lines += [
        f"- {row.name}: {row.failures} times, {row.lost_gpu_hours:,.1f} GPU-hours ({row.lost_share:.0%} of what was lost)"
        for row in reasons[:NAMED]
    ]
    lines += [
        f"- job {row.job}: ETTR {row.ettr:.1%}, {row.lost_gpu_hours:,.1f} GPU-hours lost in {row.failures} failures"
        for row in jobs
        if row.failures and row.ettr is not None
    ]
    return "\n".join(lines)
