"""Localisations as they are stored and shown: from rows to the words of recovery/localization, and to documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from recovery.localization.answers import Answer
from recovery.localization.probes import Localization, Outcome, Pool, Probe, ProbeResult
from service.store.database import timestamp
from service.store.localizations import LocalizationRow, ProbeRow, localization_of_incident, probes_of

__all__ = ["incident_localization", "localization_document", "pool_of", "read_answer", "result_of", "verdict_document"]


def pool_of(row: LocalizationRow) -> Pool:
    groups = {node: tuple(of) for node, of in row.pool["groups"].items()}
    return Pool(tuple(row.pool["nodes"]), tuple(row.pool["spares"]), groups)


def result_of(row: ProbeRow) -> ProbeResult | None:
    """The result of a stored probe; None while it has none."""
    if row.outcome is None:
        return None
    return ProbeResult(Probe(row.turn, row.round, tuple(row.members)), Outcome(row.outcome), row.seconds or 0.0, row.error)


def read_answer(status: str, detail: str | None, answer: dict[str, Any] | None) -> tuple[Answer, list[Any] | None]:
    """One member's answer, and where it would run its next store. An agent that could not probe at all has shown nothing."""
    if status != "done" or answer is None:
        return Answer(Outcome.VOID, 0.0, f"not probed: {detail or status}"), None
    endpoint = [answer["host"], answer["port"]] if answer.get("host") and answer.get("port") else None
    return Answer(Outcome(answer["outcome"]), float(answer["seconds"]), str(answer.get("error") or "")), endpoint


def verdict_document(found: Localization) -> dict[str, Any]:
    """A verdict as stored and shown."""
    return {
        "summary": found.summary,
        "isolate": list(found.isolate),
        "caution": found.caution,
        "undecided_links": found.undecided_links,
        "nodes": {node: {"verdict": item.verdict.value, "why": item.why} for node, item in found.nodes.items()},
        "links": [{"ends": list(link), "verdict": item.verdict.value, "why": item.why} for link, item in found.links.items()],
        "groups": [{"group": name, "verdict": item.verdict.value, "why": item.why} for name, item in found.groups.items()],
    }


def probe_document(row: ProbeRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "turn": row.turn,
        "round": row.round,
        "members": row.members,
        "outcome": row.outcome,
        "seconds": row.seconds,
        "error": row.error,
    }


def localization_document(row: LocalizationRow, probes: Sequence[ProbeRow]) -> dict[str, Any]:
    """A localisation with its matrix: every probe (batch, round, members) with its result, time and error."""
    return {
        "id": str(row.id),
        "job": row.job,
        "incident": None if row.incident_id is None else str(row.incident_id),
        "recovery": None if row.recovery_id is None else str(row.recovery_id),
        "asked_by": row.asked_by,
        "state": row.state,
        "summary": row.detail,
        "backend": row.backend,
        "nodes": row.pool["nodes"],
        "spares": row.pool["spares"],
        "started_at": timestamp(row.started_at),
        "ended_at": timestamp(row.ended_at),
        "seconds": None if row.ended_at is None else row.ended_at - row.started_at,
        "verdict": row.verdict,
        "probes": [probe_document(probe) for probe in probes],
    }


def incident_localization(session: Session, incident: int) -> dict[str, Any] | None:
    """The newest localisation that an incident led to; None where it led to none."""
    row = localization_of_incident(session, incident)
    return None if row is None else localization_document(row, probes_of(session, row.id))
