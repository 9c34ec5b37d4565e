"""Shapes that several routes share: pages of lists, and stored rows as JSON documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from service.problems import Problem
from service.store.database import timestamp
from service.store.incidents import TimelineEntry
from service.store.jobs import Attempt, Job, Node, RankState

__all__ = [
    "attempt_document",
    "job_document",
    "listing",
    "node_document",
    "offset_of",
    "rank_state_document",
    "timeline_document",
]


Row = TypeVar("Row")


def offset_of(cursor: str | None) -> int:
    """The position that a `cursor` of `listing` stands for."""
    if cursor is None:
        return 0
    if not cursor.isdecimal() or len(cursor) > 18:
        raise Problem(422, "cursor: use the next_cursor of the page before, unchanged")
    return int(cursor)


def listing(
    rows: Iterable[Row], document: Callable[[Row], dict[str, Any]], total: int, offset: int, limit: int
) -> dict[str, Any]:
    """One page: {"items", "total", "next_cursor"}, where the cursor is null on the last."""
    items = [document(row) for row in rows]
    more = offset + limit < total
    return {"items": items, "total": total, "next_cursor": str(offset + limit) if more else None}


def job_document(job: Job) -> dict[str, Any]:
    return {
        "job": job.name,
        "owner": job.owner,
        "contact": job.contact,
        "project": job.project,
        "command": job.command,
        "ranks": job.ranks,
        "nodes": job.nodes,
        "min_ranks": job.min_ranks,
        "layout": job.layout,
        "checkpoint_policy": job.checkpoint_policy,
        "max_restarts": job.max_restarts,
        "weight": job.weight,
        "modes": job.modes,
        "waits": [
            {"node": node, "for": wait["for"], "since": timestamp(wait["since"])} for node, wait in sorted(job.waits.items())
        ],
        "state": job.state,
        "generation": job.generation,
        "exit_status": job.exit_status,
        "created_at": timestamp(job.created_at),
        "heartbeat_at": timestamp(job.heartbeat_at),
        "ended_at": timestamp(job.ended_at),
    }


def attempt_document(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "generation": attempt.generation,
        "cause": attempt.cause,
        "directive_id": attempt.directive_id,
        "ranks": attempt.ranks,
        "store": attempt.store,
        "started_at": timestamp(attempt.started_at),
        "ended_at": timestamp(attempt.ended_at),
    }


def rank_state_document(state: RankState) -> dict[str, Any]:
    return {
        "rank": state.rank,
        "attempt": state.attempt,
        "generation": state.generation,
        "node": state.node,
        "step": state.step,
        "step_seconds": state.step_seconds,
        "loss": state.loss,
        "state": state.state,
        "age_seconds": state.age_seconds,
        "heard_at": timestamp(state.heard_at),
    }


def node_document(node: Node, aliases: list[str], now: float) -> dict[str, Any]:
    return {
        "node": node.id,
        "state": node.state,
        "aliases": aliases,
        "boot_id": node.boot_id,
        "agent_id": node.agent_id,
        "versions": node.versions,
        "clock_offset_seconds": node.clock_offset_seconds,
        "lease": {"until": timestamp(node.lease_until), "silent": node.lease_until is None or node.lease_until < now},
        "probes": node.probes,
        "seen_at": timestamp(node.seen_at),
    }


def timeline_document(entry: TimelineEntry) -> dict[str, Any]:
    return {
        "time": timestamp(entry.time),
        "kind": entry.kind,
        "actor": entry.actor,
        "text": entry.text,
        "data": entry.data,
        "seconds": entry.seconds,
    }
