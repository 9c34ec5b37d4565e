"""What is sent, what was done and by whom, the settings that people change, and the report."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.access import Right, allow
from service.api.approvals import modes_document
from service.dashboard.fleet_pages import Offset, following
from service.dashboard.rendering import CHART_POLICY, page
from service.situations import frozen
from service.state import ServiceDependency
from service.store.access import AuditEntry
from service.store.incidents import Incident, TimelineEntry
from service.store.logs import Origin
from service.store.recoveries import ActionRow

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[Depends(allow(Right.READ))])

ACTIONS, AUDITED, SOURCES = 50, 100, 500
DAY = 86_400.0


@router.get("/collectors")
def collectors_page(service: ServiceDependency) -> HTMLResponse:
    with service.store.reading() as session:
        origins = session.scalars(select(Origin).order_by(Origin.last_seen, Origin.name).limit(SOURCES)).all()
    return page("collectors.html", origins=origins, now=service.clock())


@router.get("/actions")
def actions_page(service: ServiceDependency, offset: Offset = 0) -> HTMLResponse:
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(ActionRow)) or 0
        actions = session.scalars(select(ActionRow).order_by(ActionRow.id.desc()).offset(offset).limit(ACTIONS)).all()
        entries = session.scalars(select(AuditEntry).order_by(AuditEntry.id.desc()).limit(AUDITED)).all()
    return page("actions.html", actions=actions, entries=entries, total=total, next_offset=following(offset, ACTIONS, total))


@router.get("/settings")
def settings_page(service: ServiceDependency) -> HTMLResponse:
    with service.store.reading() as session:
        why, modes = frozen(session), modes_document(session, None)["modes"]
    channels = service.reports["notifications"]() if "notifications" in service.reports else None
    checks = {name: check() for name, check in service.checks.items()}
    memory, model = service.reports["memory"](), service.reports["model"]()
    return page("settings.html", frozen=why, modes=modes, checks=checks, channels=channels, memory=memory, model=model)


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """One reason in the report; times are medians in seconds, None where none is on record."""

    reason: str
    severity: str
    incidents: int
    occurrences: int
    diagnosed: float | None
    recovered: float | None


def reason_rows(session: Session, since: float) -> list[ReasonRow]:
    """Reasons of the incidents that were first seen since then, the most frequent first."""
    found = session.execute(
        select(Incident.id, Incident.reason, Incident.severity, Incident.occurrences, Incident.first_seen).where(
            Incident.first_seen >= since, Incident.merged_into.is_(None)
        )
    ).all()
    reached: dict[tuple[int, str], float] = {}
    entries = select(TimelineEntry.incident_id, TimelineEntry.kind, func.min(TimelineEntry.time)).where(
        TimelineEntry.kind.in_(("diagnosed", "verified")), TimelineEntry.time >= since
    )
    for incident, kind, moment in session.execute(entries.group_by(TimelineEntry.incident_id, TimelineEntry.kind)):
        reached[incident, kind] = moment
    grouped: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in found:
        grouped[row.reason, row.severity].append(row)

    def middle(rows: list[Any], kind: str) -> float | None:
        spans = [reached[row.id, kind] - row.first_seen for row in rows if (row.id, kind) in reached]
        return median(spans) if spans else None

    rows = [
        ReasonRow(
            reason, severity, len(rows), sum(row.occurrences for row in rows), middle(rows, "diagnosed"), middle(rows, "verified")
        )
        for (reason, severity), rows in grouped.items()
    ]
    return sorted(rows, key=lambda row: (-row.incidents, row.reason))


def chart_by_day(session: Session, since: float) -> dict[str, Any]:
    """Stacked bars for Plotly: incidents a day (UTC) by reason."""
    counted: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for reason, moment in session.execute(
        select(Incident.reason, Incident.first_seen).where(Incident.first_seen >= since, Incident.merged_into.is_(None))
    ):
        counted[reason][datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")] += 1
    days = sorted({day for by_day in counted.values() for day in by_day})
    traces = [
        {"type": "bar", "name": reason, "x": days, "y": [by_day.get(day, 0) for day in days]}
        for reason, by_day in sorted(counted.items())
    ]
    return {"traces": traces, "most": max((sum(by_day[day] for by_day in counted.values()) for day in days), default=0)}


@router.get("/report")
def report_page(service: ServiceDependency, days: Annotated[int, Query(ge=1, le=366)] = 7) -> HTMLResponse:
    since = service.clock() - days * DAY
    with service.store.reading() as session:
        reasons = reason_rows(session, since)
        by_day = chart_by_day(session, since)
        counted = session.execute(
            select(ActionRow.action, ActionRow.mode, ActionRow.state, func.count())
            .where(ActionRow.issued_at >= since)
            .group_by(ActionRow.action, ActionRow.mode, ActionRow.state)
        )
        observed: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: {"times": 0, "done": 0})
        for action, mode, state, count in counted:
            observed[action, mode]["times"] += count
            observed[action, mode]["done"] += count if state == "done" else 0
    rows = [{"action": action, "mode": mode, **counts} for (action, mode), counts in sorted(observed.items())]
    return page("report.html", policy=CHART_POLICY, reasons=reasons, by_day=by_day, observed=rows, chosen=days)
