"""The report: what jobs got out of their time, what failures cost and why, and what Pitstop did about it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse
from sqlalchemy import Integer, cast, func, select
from sqlalchemy.orm import Session

from recovery.accounts import DAY_SECONDS, Phase
from service.access import Right, allow
from service.account_tables import DayRow, FailureRow, Subject, day_rows, failure_rows, heat_rows, job_rows
from service.dashboard.rendering import CHART_POLICY, page
from service.simulations import Simulation, kept_simulations
from service.state import ServiceDependency
from service.store.incidents import Incident
from service.store.recoveries import ActionRow

__all__ = ["router"]

router = APIRouter(include_in_schema=False, dependencies=[Depends(allow(Right.READ))])

JOBS, NODES, REASONS = 20, 10, 12
OTHERS = "all others"
QUICK_SECONDS, FACTOR, LONGEST_SECONDS = 0.25, 60.0, 300.0
SPANS = (1, 7, 30, 90)
SUBJECTS = (Subject.REASON, Subject.CATEGORY, Subject.NODE, Subject.RULE)
# The same phase has the same colour in every chart.
COLOURS = {
    Phase.PRODUCTIVE: "#2a9d5c",
    Phase.STARTING: "#8ab4d8",
    Phase.DETECTION: "#d9534f",
    Phase.DIAGNOSIS: "#e8a33d",
    Phase.DECISION: "#c77dba",
    Phase.TRANSITION: "#6c6fb5",
    Phase.RECOMPUTING: "#9a9a9a",
}


def date_of(day: int) -> str:
    return datetime.fromtimestamp(day * DAY_SECONDS, UTC).strftime("%Y-%m-%d")


@dataclass(frozen=True, slots=True)
class IncidentCount:
    """Incidents of all kinds, of one reason and severity, first seen on one day."""

    reason: str
    severity: str
    day: int
    incidents: int
    occurrences: int


def incident_counts(session: Session, since: float) -> list[IncidentCount]:
    day = cast(func.floor(Incident.first_seen / DAY_SECONDS), Integer)
    chosen = select(Incident.reason, Incident.severity, day, func.count(), func.sum(Incident.occurrences))
    chosen = chosen.where(Incident.first_seen >= since, Incident.merged_into.is_(None))
    rows = session.execute(chosen.group_by(Incident.reason, Incident.severity, day))
    return [IncidentCount(*row) for row in rows]


def incident_rows(counts: Sequence[IncidentCount]) -> list[dict[str, Any]]:
    """By reason and severity, the most frequent first."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for count in counts:
        entry = sums[count.reason, count.severity]
        entry[0] += count.incidents
        entry[1] += count.occurrences
    rows = [
        {"reason": reason, "severity": severity, "incidents": incidents, "occurrences": occurrences}
        for (reason, severity), (incidents, occurrences) in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row["incidents"], row["reason"]))


def chart_of_incidents(counts: Sequence[IncidentCount]) -> dict[str, Any]:
    """Stacked bars for Plotly: incidents a day (UTC) by reason, the rarer reasons together."""
    totals: dict[str, int] = defaultdict(int)
    for count in counts:
        totals[count.reason] += count.incidents
    named = sorted(totals, key=lambda reason: (-totals[reason], reason))[:REASONS]
    days = sorted({count.day for count in counts})
    heights: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for count in counts:
        heights[count.reason if count.reason in named else OTHERS][count.day] += count.incidents
    traces = [
        {"type": "bar", "name": reason, "x": [date_of(day) for day in days], "y": [heights[reason][day] for day in days]}
        for reason in [*named, OTHERS]
        if reason in heights
    ]
    most = max((sum(by_day[day] for by_day in heights.values()) for day in days), default=0)
    return {"traces": traces, "unit": "incidents", "step": max(1, -(-most // 12))}


def chart_of_time(days: Sequence[DayRow]) -> dict[str, Any]:
    """Stacked bars: GPU-hours a day by what they were spent on."""
    dates = [date_of(day.day) for day in days]
    traces = [
        {
            "type": "bar",
            "name": phase.value,
            "x": dates,
            "y": [round(day.gpu_hours.get(phase.value, 0.0), 3) for day in days],
            "marker": {"color": colour},
        }
        for phase, colour in COLOURS.items()
        if any(day.gpu_hours.get(phase.value) for day in days)
    ]
    return {"traces": traces, "unit": "GPU-hours"}


def chart_of_losses(rows: Sequence[FailureRow]) -> dict[str, Any]:
    """Bars: GPU-hours lost by reason, the dearest first."""
    dearest = sorted(rows, key=lambda row: -row.lost_gpu_hours)[:REASONS]
    values = [round(row.lost_gpu_hours, 3) for row in dearest]
    return {"traces": [{"type": "bar", "x": [row.name for row in dearest], "y": values}], "unit": "GPU-hours lost"}


def chart_of_phases(rows: Sequence[FailureRow]) -> dict[str, Any]:
    """Stacked bars: seconds from the failure to the first step again by phase, the mean of each of the most frequent reasons."""
    frequent = sorted(rows, key=lambda row: (-row.failures, row.name))[:REASONS]
    means = {
        Phase.DETECTION: [row.detection_mean for row in frequent],
        Phase.DIAGNOSIS: [row.diagnosis_mean for row in frequent],
        Phase.DECISION: [row.decision_mean for row in frequent],
        Phase.TRANSITION: [row.transition_mean for row in frequent],
        Phase.RECOMPUTING: [row.recomputing_mean for row in frequent],
    }
    names = [row.name for row in frequent]
    traces = [
        {
            "type": "bar",
            "name": phase.value,
            "x": names,
            "y": [round(value or 0.0, 3) for value in values],
            "marker": {"color": COLOURS[phase]},
        }
        for phase, values in means.items()
    ]
    return {"traces": traces, "unit": "seconds"}


def chart_of_ratios(days: Sequence[DayRow]) -> dict[str, Any]:
    """Lines: ETTR and goodput of all jobs by day, in per cent."""
    dates = [date_of(day.day) for day in days]
    series = (("ETTR", [day.ettr for day in days]), ("goodput", [day.goodput for day in days]))
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": dates,
            "y": [None if value is None else round(100 * value, 2) for value in values],
        }
        for name, values in series
    ]
    return {"traces": traces, "unit": "per cent", "from": "anywhere"}


def chart_of_simulation(simulation: Simulation) -> dict[str, Any]:
    """Steps: WAF over time by policy, of one seed."""
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "line": {"shape": "hv"},
            "name": policy,
            "x": [round(second / DAY_SECONDS, 3) for second, _ in points],
            "y": [waf / 1e15 for _, waf in points],
        }
        for policy, points in simulation.waf.items()
    ]
    return {"traces": traces, "unit": "weighted PFLOP/s", "x": "linear"}


def action_rows(session: Session, since: float) -> list[dict[str, Any]]:
    """What was decided by kind and mode, and how often it was carried out."""
    counted = session.execute(
        select(ActionRow.action, ActionRow.mode, ActionRow.state, func.count())
        .where(ActionRow.issued_at >= since)
        .group_by(ActionRow.action, ActionRow.mode, ActionRow.state)
    )
    observed: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: {"times": 0, "done": 0})
    for action, mode, state, count in counted:
        observed[action, mode]["times"] += count
        observed[action, mode]["done"] += count if state == "done" else 0
    return [{"action": action, "mode": mode, **counts} for (action, mode), counts in sorted(observed.items())]


def add_up(session: Session, days: int, until: float) -> dict[str, Any]:
    """Everything that the page shows of the last `days`."""
    since = until - days * DAY_SECONDS
    by_day = day_rows(session, since, until)
    failures = failure_rows(session, since, until, SUBJECTS)
    counted = incident_counts(session, since)
    return {
        "until": until,
        "chosen": days,
        "spans": SPANS,
        "held": sum(sum(day.gpu_hours.values()) for day in by_day),
        "productive": sum(day.gpu_hours.get(Phase.PRODUCTIVE.value, 0.0) for day in by_day),
        "time_chart": chart_of_time(by_day),
        "ratio_chart": chart_of_ratios(by_day),
        "failures": failures[Subject.REASON],
        "loss_chart": chart_of_losses(failures[Subject.REASON]),
        "phase_chart": chart_of_phases(failures[Subject.REASON]),
        "categories": failures[Subject.CATEGORY],
        "jobs": job_rows(session, since, until, JOBS),
        "nodes": failures[Subject.NODE][:NODES],
        "rules": failures[Subject.RULE][:NODES],
        "heat": heat_rows(session, since, until),
        "incidents": incident_rows(counted),
        "incident_chart": chart_of_incidents(counted),
        "observed": action_rows(session, since),
    }


@router.get("/report")
def report_page(service: ServiceDependency, days: Annotated[int, Query(ge=1, le=366)] = 7) -> HTMLResponse:
    """Accounts of the last days: ratios, time by phase, failures in the form of Acme's table, jobs, nodes, heat, actions."""
    now = service.clock()
    until, tables = service.added_up.get(days, (float("-inf"), {}))
    # Of few incidents it is added up at each look; of many, what took a second is good for many times that.
    if not tables or not until <= now < until + tables["good_for"]:
        begun = time.perf_counter()
        with service.store.reading() as session:
            tables = add_up(session, days, now)
        tables["good_for"] = min(LONGEST_SECONDS, FACTOR * max(0.0, time.perf_counter() - begun - QUICK_SECONDS))
        service.added_up[days] = now, tables
    kept = [
        {"name": item.name, "told": item.simulation, "against": item.against}
        | ({} if item.simulation is None else {"chart": chart_of_simulation(item.simulation)})
        for item in kept_simulations(service.settings.data_dir)
    ]
    return page("report.html", policy=CHART_POLICY, simulations=kept, **tables)
