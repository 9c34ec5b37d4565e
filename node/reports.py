"""The documents that an agent sends about a job: registration, attempts, heartbeats, failures, the end. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from detectors.processes import ProcessId
from detectors.statistics.judgement import Finding, Judgement
from detectors.supervisor import RankExit, first_failure
from node.care_states import Care, Command, Noticed, PostNotice
from node.crew import Gone
from node.going_on import can_go_on, survivors
from node.job_state import JobState
from node.monitors import RankReading

__all__ = [
    "TOLD",
    "UNREACHABLE",
    "attempt_document",
    "end_document",
    "failure_document",
    "heartbeat_document",
    "notice_document",
    "noticed",
    "registration_document",
    "result_document",
    "unreachable_notice",
]

# A rank that says nothing new for this long is told as silent; a word, not a judgement.
SILENT_SECONDS = 10.0
MAX_ERROR_CHARACTERS = 8192
# What stops a job from getting anywhere is told as a failure; anything else is a line among the others.
TOLD = frozenset((Finding.HANG, Finding.NOT_FINITE, Finding.LOSS_SPIKE))
# Of these the first bad step is where to go back before.
NUMBERS = frozenset((Finding.NOT_FINITE, Finding.LOSS_SPIKE))
UNREACHABLE = "node_unreachable"


def registration_document(
    job: str, command: tuple[str, ...], ranks: int, node: str, max_restarts: int, owner: str, min_ranks: int
) -> dict[str, Any]:
    """`ranks`: of the whole job at its largest; `min_ranks`: what it is worth going on with."""
    return {
        "job": job,
        "owner": owner,
        "command": list(command),
        "ranks": ranks,
        "nodes": [node],
        "min_ranks": min_ranks,
        "max_restarts": max_restarts,
    }


def attempt_document(
    node: str, state: JobState, cause: str, command: Command | None = None, others: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """`command`: the one that began it; `others`: the ranks of other nodes, in the form of an attempt's."""
    placement = state.placement
    first = state.formation.ranks_of(node).start if state.formation is not None else 0
    store = {"host": placement.store_host, "port": placement.store_port} if placement.store_host else None
    own = [
        {"rank": item.rank, "local_rank": item.rank - first, "node": node, "pid": item.process.pid}
        for item in placement.processes
    ]
    document: dict[str, Any] = {
        "attempt": state.care.attempt,
        "generation": state.care.generation,
        # A formation that grew by itself is the launcher's own doing, too.
        "cause": cause if cause in ("start", "restart", "takeover") else "self",
        "ranks": sorted([*own, *others], key=lambda item: int(item["rank"])),
        "store": store,
        "started_at": time.time(),
    }
    directive = command.args.get("directive_id") if command is not None and cause == "restart" else None
    return {**document, "directive_id": directive} if isinstance(directive, str) else document


def result_document(status: str, generation: int, detail: str, processes: Mapping[int, ProcessId]) -> dict[str, Any]:
    """The answer to a command. `processes`: this node's ranks."""
    ranks = [{"rank": rank, "pid": process.pid} for rank, process in processes.items()]
    return {"status": status, "generation": generation, "detail": detail, "ranks": ranks}


def rank_states(care: Care, readings: Mapping[int, RankReading], now: float) -> list[dict[str, Any]]:
    ranks = []
    for rank, reading in readings.items():
        progress = reading.progress
        age = 0.0 if progress is None else max(0.0, now - progress.since_ns / 1e9)
        state = "running"
        if rank not in care.running:
            state = "exited"
        elif progress is not None and age > SILENT_SECONDS:
            state = "silent"
        entry: dict[str, Any] = {
            "rank": rank,
            "step": reading.step,
            "state": state,
            "age_seconds": round(age, 3),
        }
        if progress is not None and progress.completed:
            entry["step_seconds"] = round(progress.last_step_ns / 1e9, 6)
            entry["section"] = progress.section.name.lower()
            entry["completed"] = progress.completed
        loss = reading.metrics.get("loss")
        # JSON has no NaN: a loss that is not a number is left out, and the monitor's own judgement tells of it.
        if loss is not None and abs(loss[1]) < float("inf"):
            entry["loss"] = loss[1]
        ranks.append(entry)
    return ranks


def heartbeat_document(
    node: str,
    care: Care,
    readings: Mapping[int, RankReading],
    now: float,
    gone: Iterable[Gone] = (),
    waits_for: str | None = None,
) -> dict[str, Any]:
    """Of this node's ranks. `now` is CLOCK_MONOTONIC in seconds, the clock of the monitor files; `gone`: nodes of the job that
    this one cannot reach; `waits_for`: for whom, or what, its agent waits."""
    return {
        "attempt": care.attempt,
        "generation": care.generation,
        "node": node,
        "ranks": rank_states(care, readings, now),
        "unreachable": [{"node": item.node, "since": item.since, "why": item.why} for item in gone],
        "waits_for": waits_for,
        "time": time.time(),
    }


def end_document(node: str, care: Care, readings: Mapping[int, RankReading], status: int, now: float) -> dict[str, Any]:
    return {**heartbeat_document(node, care, readings, now), "ended": True, "exit_status": status, "why": care.why}


def failure_document(
    job: str,
    node: str,
    node_of: Callable[[int | None], str],
    care: Care,
    exits: Iterable[RankExit],
    last_step: int | None,
    checkpoint: int | None,
    gone: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """CONTRACT.md's failure report, the first observed failure first; the same failure always has the same key.

    `node`: that tells it; `checkpoint`: the step of the newest one that every rank has finished; `gone`: nodes of the job that
    cannot be reached.
    """
    failed = list(exits)
    first = first_failure(failed)
    failed.sort(key=lambda item: (item is not first, item.time))
    steps = [step for step in (last_step, *(item.step for item in failed)) if step is not None]
    return {
        "attempt": care.attempt,
        "generation": care.generation,
        "idempotency_key": f"{job}:{care.generation}",
        "failed": [
            {
                "rank": item.rank,
                "node": node_of(item.rank),
                "exit_code": item.code,
                "signal": item.signal,
                "error": None if item.error is None else item.error[:MAX_ERROR_CHARACTERS],
                "step": item.step,
                "time": item.time,
                "raised_at": item.error_time,
            }
            for item in failed
        ],
        "last_step": max(steps, default=None),
        "last_checkpoint": None if checkpoint is None else {"step": checkpoint},
        "unreachable": list(gone),
        "told_by": node,
        "in_place": sorted(survivors(care)) if can_go_on(care) else [],
    }


def notice_document(
    job: str,
    node: str,
    node_of: Callable[[int | None], str],
    care: Care,
    notice: PostNotice,
    last_step: int | None,
    checkpoint: int | None,
    gone: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """A failure report for ranks that run but get nowhere: no exit status, the judgement in its place. `node`: that tells it."""
    document = {
        "attempt": care.attempt,
        "generation": care.generation,
        "idempotency_key": f"{job}:{care.generation}:{notice.key}",
        "failed": [
            {"rank": notice.rank, "node": node_of(notice.rank), "exit_code": None, "signal": None, "error": noticed_line(notice)}
        ],
        "last_step": last_step,
        "last_checkpoint": None if checkpoint is None else {"step": checkpoint},
        "unreachable": list(gone),
        "told_by": node,
    }
    return document if notice.bad_since is None else {**document, "bad_since": notice.bad_since}


def noticed(judged: Iterable[Judgement], hang: Judgement | None, gone: Sequence[Gone], own: str) -> Iterator[Noticed]:
    """What of `judged`, new about the ranks of node `own`, is more than a line among the others.

    `hang`: what holds them up at present. Nobody need be sure of it where a node is gone, which of the two was seen first.
    """
    for judgement in judged:
        if judgement.finding in TOLD and judgement.firm:
            bad_since = judgement.began if judgement.finding in NUMBERS else None
            yield Noticed(judgement.finding.value, judgement.rank, judgement.why, bad_since)
    if hang is not None and gone:
        why = f"node {gone[0].node} cannot be reached from {own} ({gone[0].why}), and its peers get nowhere: {hang.why}"
        yield Noticed(UNREACHABLE, None, why)


def unreachable_notice(gone: Gone, own: str) -> PostNotice:
    return PostNotice(None, f"node {gone.node} cannot be reached from {own}: {gone.why}", f"{UNREACHABLE}:{gone.node}")


def noticed_line(notice: PostNotice) -> str:
    """As it stands among the job's lines (`LocalRanks.note`): a service that has not got those yet reads it here."""
    return f"pitstop monitor: {notice.key.replace('_', ' ')}: {notice.why}"
