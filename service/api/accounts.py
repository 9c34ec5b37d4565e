"""The accounts as JSON and as CSV: what failures cost, by whatever it is asked by."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from recovery.accounts import DAY_SECONDS, DOWN, Phase
from service.access import Right, allow
from service.account_tables import Subject, day_rows, failure_rows, heat_rows, job_rows, loss_rows
from service.accounts import accounts_of
from service.api.jobs import JobName, job_or_404
from service.state import ServiceDependency
from service.store import Store
from service.store.accounts import LossRow
from service.store.database import timestamp
from service.store.incidents import Incident

__all__ = ["loss_document", "router"]

router = APIRouter(prefix="/api/v1", tags=["accounts"], dependencies=[Depends(allow(Right.READ))])

# What a table may hold in one answer; single interruptions are paged through.
MOST_JOBS, PAGE = 10_000, 1000
Days = Annotated[float, Query(gt=0, le=3660, description="how far back, in days")]


class Table(StrEnum):
    """What there is a table of: failures by something, or jobs, days, single interruptions, bands of heat."""

    REASON = "reason"
    RULE = "rule"
    NODE = "node"
    CATEGORY = "category"
    JOB = "job"
    DAY = "day"
    INCIDENT = "incident"
    HEAT = "heat"


def loss_document(loss: LossRow, incident: Incident | None) -> dict[str, Any]:
    """One interruption: what stopped, for how long in each phase, and what that cost."""
    return {
        "incident": None if incident is None else str(incident.id),
        "job": loss.job,
        "generation": loss.generation,
        "node": incident.node if incident else None,
        "reason": incident.reason if incident else None,
        "rule": incident.rule if incident else None,
        "severity": incident.severity if incident else None,
        "gpus": loss.gpus,
        "stopped_at": timestamp(loss.stopped_at),
        "time_to_failure_seconds": loss.ran_seconds,
        "time_to_restart_seconds": loss.restart_seconds,
        **{f"{phase.value}_seconds": getattr(loss, f"{phase.value}_seconds") for phase in (*DOWN, Phase.RECOMPUTING)},
        "recomputed_steps": loss.recomputed_steps,
        "missing_gpu_hours": loss.missing_gpu_seconds / 3600,
        "lost_gpu_hours": loss.lost_gpu_seconds / 3600,
    }


def documents(session: Session, table: Table, since: float, until: float) -> Iterator[dict[str, Any]]:
    """The rows of a table, flat, every one with the same names."""
    match table:
        case Table.INCIDENT:
            offset, total = 0, 1
            while offset < total:
                total, rows = loss_rows(session, since, until, offset, PAGE)
                yield from (loss_document(loss, incident) for loss, incident in rows)
                offset += PAGE
        case Table.DAY:
            for day in day_rows(session, since, until):
                hours = {f"{phase.value}_gpu_hours": day.gpu_hours.get(phase.value, 0.0) for phase in Phase}
                date = str(timestamp(day.day * DAY_SECONDS))[:10]
                yield {"day": date, "ettr": day.ettr, "goodput": day.goodput, **hours}
        case Table.JOB:
            yield from map(asdict, job_rows(session, since, until, MOST_JOBS))
        case Table.HEAT:
            for band in heat_rows(session, since, until):
                yield {**asdict(band), "failures_per_1000_node_hours": band.per_thousand_hours}
        case _:
            subject = Subject(table.value)
            for row in failure_rows(session, since, until, (subject,))[subject]:
                yield {**asdict(row), "restart_ratio": row.restart_ratio}


@router.get("/accounts", operation_id="listAccounts")
def list_accounts(service: ServiceDependency, by: Table = Table.REASON, days: Days = 7) -> dict[str, Any]:
    """What failures of the last days cost. Single interruptions: the newest thousand; all of them are in the CSV."""
    until = service.clock()
    since = until - days * DAY_SECONDS
    with service.store.reading() as session:
        if by is Table.INCIDENT:
            total, rows = loss_rows(session, since, until, 0, PAGE)
            items = [loss_document(loss, incident) for loss, incident in rows]
        else:
            items = list(documents(session, by, since, until))
            total = len(items)
    return {"items": items, "total": total, "next_cursor": None, "since": timestamp(since), "until": timestamp(until)}


@router.get("/jobs/{job}/account", operation_id="getJobAccount")
def job_account(job: JobName, service: ServiceDependency) -> dict[str, Any]:
    """What the job's time was spent on up to this moment, drawn up now: each second of its wall clock in one phase."""
    with service.store.reading() as session:
        job_or_404(session, job)
        lives = accounts_of(session, job, service.clock())
    seconds = {phase.value: sum(life.seconds(phase) for life in lives) for phase in Phase}
    wall = sum(life.wall_seconds for life in lives)
    return {
        "job": job,
        "wall_seconds": wall,
        "seconds": seconds,
        "ettr": seconds[Phase.PRODUCTIVE.value] / wall if wall else None,
        "losses": [
            {
                "generation": loss.generation,
                "gpus": loss.gpus,
                "stopped_at": timestamp(loss.stopped_at),
                "time_to_failure_seconds": loss.ran_seconds,
                "time_to_restart_seconds": loss.restart_seconds,
                "seconds": {phase.value: spent for phase, spent in loss.seconds.items()},
                "recomputed_steps": loss.recomputed_steps,
                "lost_gpu_hours": loss.lost_gpu_seconds / 3600,
            }
            for life in lives
            for loss in life.losses
        ],
        "lives": [{"wall_seconds": life.wall_seconds, "goodput": life.goodput, "steps": life.steps} for life in lives],
    }


@router.get("/accounts.csv", operation_id="exportAccounts", response_class=StreamingResponse)
def export_accounts(service: ServiceDependency, by: Table = Table.REASON, days: Days = 7) -> StreamingResponse:
    """The same as a file for a spreadsheet, of any length."""
    until = service.clock()
    lines = csv_lines(service.store, by, until - days * DAY_SECONDS, until)
    name = f"pitstop-{by.value}-{str(timestamp(until))[:10]}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines, media_type="text/csv; charset=utf-8", headers=headers)


def csv_lines(store: Store, table: Table, since: float, until: float) -> Iterator[str]:
    """A table as CSV, some rows at a time; only its head where there are none."""
    with store.reading() as session:
        buffer, writer = io.StringIO(), None
        for number, document in enumerate(documents(session, table, since, until), 1):
            if writer is None:
                writer = csv.DictWriter(buffer, list(document))
                writer.writeheader()
            writer.writerow({name: harmless(value) for name, value in document.items()})
            if number % PAGE == 0:
                yield buffer.getvalue()
                buffer.seek(0)
                buffer.truncate()
        yield buffer.getvalue()


def harmless(value: Any) -> Any:
    """A spreadsheet runs text that begins like a formula; job and node names come from outside."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
