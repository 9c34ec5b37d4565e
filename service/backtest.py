"""The back-test of a candidate: the gate, over what this service has stored. The computing happens in a matcher process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from agents.normal_form import cause_lines
from rules.diagnosis import Source
from rules.gate import Candidate, GateResult, SettledIncident, inspect
from rules.learnt import LEARNT_PREFIX
from rules.matcher import Matcher
from rules.pack import Rule, RuleRole, load_packs
from rules.taxonomy import NONE, UNNAMED
from service.candidates import ALIVE, in_state, rule_of
from service.chunks import decode_chunk
from service.ingest.matching import MatcherPool, Tools
from service.kept_evidence import kept_lines
from service.memories import DIAGNOSIS
from service.store import Store
from service.store.incidents import Incident, TimelineEntry
from service.store.jobs import Job
from service.store.logs import Chunk, Stream
from service.timeline import IncidentState

__all__ = ["back_test", "settled_reason"]

# The newest of each are looked at: so many incidents with so many lines, so many jobs that ended well.
INCIDENTS, LINES_OF_INCIDENT = 200, 500
HEALTHY_JOBS, HEALTHY_LINES = 20, 20_000


def back_test(store: Store, pool: MatcherPool, rule: Rule, cited: Sequence[str], folder: Path) -> dict[str, Any]:
    """What the gate says of `rule`: {"passes", "objections", "differences", "agreeing", "incidents", "healthy_lines"}.

    Raises Overloaded or MatcherDied where no matcher process could do it now.
    """
    settled, healthy = settled_incidents(store), healthy_lines(store)
    with store.reading() as session:
        learnt = tuple(rule_of(row) for row in in_state(session, *ALIVE) if row.role != RuleRole.ROUTINE)
    size = sum(len(line) for incident in settled for line in incident.lines) + sum(map(len, healthy))
    result = pool.submit(size, judge, Candidate(rule, tuple(cited)), settled, healthy, learnt, folder).result()
    return asdict(result) | {"incidents": len(settled), "healthy_lines": len(healthy)}


def judge(
    tools: Tools,
    candidate: Candidate,
    settled: Sequence[SettledIncident],
    healthy: Sequence[str],
    learnt: Sequence[Rule],
    folder: Path,
) -> GateResult:
    """Runs in a matcher process."""
    known = rules_with_examples(folder)
    signals = (
        Matcher(known, tools.matcher.expressions, tools.matcher.patterns) if len(known) == len(tools.matcher.rules) else None
    )
    return inspect(candidate, signals or Matcher(known), normal_corpus(folder), settled, healthy, learnt)


@cache
def rules_with_examples(folder: Path) -> tuple[Rule, ...]:
    """Compiled rules come without their examples."""
    return load_packs(folder)


@cache
def normal_corpus(folder: Path) -> tuple[str, ...]:
    """Lines that mean no failure: what the packs show as routine, and what they show as not to be taken for a failure."""
    rules = rules_with_examples(folder)
    routine = [text for rule in rules if rule.role is RuleRole.ROUTINE for text in rule.examples.match]
    missed = [text for rule in rules if rule.role is not RuleRole.ROUTINE for text in rule.examples.miss]
    return tuple(dict.fromkeys(line for text in (*routine, *missed) for line in text.splitlines() if line.strip()))


def settled_reason(session: Session, incident: Incident) -> str | None:
    """The cause on which an incident is settled: what a person said last, else what a shipped rule said and recovery verified."""
    said = session.scalar(
        select(TimelineEntry)
        .where(TimelineEntry.incident_id == incident.id, TimelineEntry.kind == "feedback")
        .order_by(TimelineEntry.id.desc())
        .limit(1)
    )
    reason = None
    if said is not None:
        # Called wrong without a better name: nothing is settled.
        reason = said.data.get("reason") or (incident.reason if said.data.get("right") else None)
    elif incident.state in (IncidentState.VERIFIED, IncidentState.RESOLVED) and incident.source == Source.RULE:
        reason = incident.reason
    return None if reason is None or reason in UNNAMED | {NONE} else str(reason)


def settled_incidents(store: Store) -> list[SettledIncident]:
    settled = []
    with store.reading() as session:
        query = select(Incident).where(Incident.diagnosis.is_not(None), Incident.merged_into.is_(None))
        for incident in session.scalars(query.order_by(Incident.id.desc()).limit(INCIDENTS)):
            # What a learnt rule named is no witness for learnt rules.
            if (reason := settled_reason(session, incident)) and not str(incident.rule or "").startswith(LEARNT_PREFIX):
                settled.append((incident.id, reason, DIAGNOSIS.validate_python(incident.diagnosis)))
    found = []
    for number, reason, diagnosis in settled:
        lines = tuple(line.text for line in kept_lines(store, number)[-LINES_OF_INCIDENT:])
        found.append(SettledIncident(str(number), reason, lines, tuple(cause_lines(diagnosis, lines))))
    return found


def healthy_lines(store: Store) -> list[str]:
    """Kept lines of the newest jobs that ended well."""
    lines: dict[str, None] = {}
    with store.reading() as session:
        ended = select(Job.name).where(Job.exit_status == 0, Job.ended_at.is_not(None)).order_by(Job.ended_at.desc())
        names = session.scalars(ended.limit(HEALTHY_JOBS)).all()
        chunks = select(Chunk.data).join(Stream, Stream.id == Chunk.stream_id).where(Stream.job.in_(names))
        for data in session.scalars(chunks.order_by(Chunk.id.desc())):
            lines.update(dict.fromkeys(line.text.decode("utf-8", "replace") for line in decode_chunk(data)))
            if len(lines) >= HEALTHY_LINES:
                break
    return list(lines)[:HEALTHY_LINES]
