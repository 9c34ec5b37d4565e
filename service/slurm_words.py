"""What Slurm's hooks say: taken as one durable row each, and folded into what is known of jobs and nodes afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from detectors.slurm_states import Ending, Meaning, NodeWord, ending_of_state
from rules.hostlist import expand
from service.fleet import HELD
from service.store.events import publish_event
from service.store.fleet import active_return
from service.store.jobs import Job, JobState, Node, current_attempt
from service.store.slurm import SlurmJob, SlurmWord

__all__ = ["CONTROLLER_KINDS", "KINDS", "NODE_KINDS", "begin_attempt", "end_attempt", "fold_word", "mark_node", "note_slurm_job"]

NODE_KINDS = frozenset({"prolog", "epilog", "health"})
CONTROLLER_KINDS = frozenset({"prolog_slurmctld", "epilog_slurmctld", "job_end", "node_state"})
KINDS = NODE_KINDS | CONTROLLER_KINDS
STATE = re.compile(r"[A-Z_]{2,32}")
EXIT = re.compile(r"[0-9]{1,3}:[0-9]{1,3}")


def note_slurm_job(session: Session, job: str, document: Mapping[str, Any], now: float) -> SlurmJob:
    """A launcher inside Slurm says which job of Slurm carries `job`, and which attempt this is."""
    key = str(document["id"]), str(document.get("cluster") or "")
    row = session.get(SlurmJob, key)
    if row is None:
        row = SlurmJob(id=key[0], cluster=key[1], job=job, restarts=0, nodes=[], state="RUNNING", seen_at=now)
        row.evidence, row.why, row.node_words = "", "", {}
        row.reported = row.requeued = row.over = False
        session.add(row)
    row.job = job
    begin_attempt(row, int(document.get("restarts") or 0), tuple(document.get("nodes") or ()), now)
    session.flush()
    return row


def begin_attempt(row: SlurmJob, restarts: int, nodes: tuple[str, ...], now: float) -> None:
    """An attempt runs. One of a lower count says nothing any more."""
    if restarts < row.restarts or (restarts == row.restarts and row.ending is not None):
        return
    if restarts > row.restarts:
        row.restarts, row.ending, row.evidence, row.why, row.node_words = restarts, None, "", "", {}
        row.reported, row.ended_at = False, None
    row.state, row.requeued, row.over, row.seen_at = "RUNNING", False, False, now
    if nodes:
        row.nodes = list(nodes)


def end_attempt(session: Session, row: SlurmJob, ending: Ending, now: float) -> bool:
    """Slurm has ended the attempt; False where that was known. What is a failure is reported by service/slurm_watch."""
    if row.ending is not None:
        return False
    row.ending, row.evidence, row.why, row.ended_at, row.seen_at = ending.state, ending.evidence, ending.why, now, now
    row.reported = ending.meaning is not Meaning.FAILURE
    publish_event(session, "slurm.ended", row.job, {"slurm": row.id, "state": ending.state, "why": ending.why}, now)
    job = session.get(Job, row.job)
    if job is None:
        return True
    # No process of it is left: whoever waits for that need not hear it from an agent.
    job.ended_at, job.updated_at = now, now
    if ending.meaning is Meaning.INTENDED:
        job.state = ending.state.lower()
        publish_event(session, f"job.{job.state}", job.name, {"by": "slurm"}, now)
    elif job.state == JobState.RUNNING:
        job.state = (JobState.ENDED if ending.meaning is Meaning.WELL else JobState.FAILED).value
    attempt = current_attempt(session, row.job)
    if attempt is not None and attempt.ended_at is None:
        attempt.ended_at = now
    return True


def fold_word(session: Session, word: SlurmWord) -> None:
    """What follows from one call of a hook. Jobs that nobody registered are not ours to care for."""
    word.done = True
    fields, now = word.fields, word.received_at
    if word.kind == "node_state":
        for node in expand(fields.get("PITSTOP_NODES", "")):
            publish_event(session, "slurm.node", node, {"event": fields.get("PITSTOP_EVENT", "")[:32]}, now)
        return
    if word.slurm_id is None:
        return
    cluster = cluster_of(fields)
    rows = session.scalars(select(SlurmJob).where(SlurmJob.id == word.slurm_id)).all()
    # Without accounting Slurm does not tell every hook which cluster it is.
    rows = [row for row in rows if row.cluster == cluster] if cluster else rows
    if len(rows) != 1:
        return
    row = rows[0]
    if word.kind == "prolog_slurmctld":
        restarts = fields.get("SLURM_JOB_RESTART_COUNT") or fields.get("SLURM_RESTART_COUNT") or "0"
        begin_attempt(row, int(restarts) if restarts.isdecimal() else 0, expand(fields.get("SLURM_JOB_NODELIST", "")), now)
    elif word.kind == "job_end":
        state = fields.get("JOBSTATE", "").split(" ")[0].partition("+")[0]
        if STATE.fullmatch(state):
            end_attempt(session, row, ending_of_state(row.id, state, row.nodes, exit_of(fields)), now)
    else:
        row.seen_at = now


def cluster_of(fields: Mapping[str, str]) -> str:
    named = fields.get("SLURM_CLUSTER_NAME") or fields.get("CLUSTER") or ""
    return "" if named in ("unknown", "(null)") else named


def exit_of(fields: Mapping[str, str]) -> str:
    """`ExitCode=0:15`, where the hook says it."""
    found = fields.get("EXITCODE") or fields.get("SLURM_JOB_EXIT_CODE2") or ""
    return f"ExitCode={found}" if EXIT.fullmatch(found) else ""


def mark_node(session: Session, word: NodeWord, now: float) -> None:
    """The node's state as Slurm has it: held where somebody else took it out. What Pitstop took out has a way back of its own."""
    row = session.get(Node, word.name)
    if row is None:
        row = Node(id=word.name, state="ready", versions={}, seen_at=now)
        session.add(row)
    if active_return(session, word.name) is not None:
        return
    state = HELD if word.is_held else "ready"
    if row.state != state:
        row.state = state
        publish_event(session, f"node.{state}", word.name, {"slurm": "+".join(word.flags), "reason": word.reason[:200]}, now)
