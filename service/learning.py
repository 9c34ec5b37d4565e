"""Learning, a duty: confirmed incidents become candidates, the gate judges them, shadows are counted, what agrees is used.

Off the path of any request, behind the verdicts that are already published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from agents.line_pattern import line_pattern
from agents.normal_form import cause_lines
from rules.diagnosis import Diagnosis
from rules.learnt import LEARNT_PREFIX
from rules.matcher import Matcher
from rules.pack import Rule, RuleRole
from rules.taxonomy import UNNAMED, load_taxonomy
from service.backtest import back_test, settled_reason
from service.candidates import (
    ALIVE,
    CandidateState,
    Origin,
    hits_of,
    in_state,
    move_candidate,
    propose,
    rule_of,
    step_back,
)
from service.diagnoses import found_by
from service.ingest.matching import MatcherDied, MatcherPool, Overloaded, Tools
from service.kept_evidence import kept_lines, kept_streams
from service.memories import DIAGNOSIS
from service.store import Clock, Store
from service.store.access import Switch
from service.store.candidates import CandidateHit, CandidateRow
from service.store.incidents import Incident, TimelineEntry

__all__ = ["Learning"]

ACTOR = "learning"
# Switch (service/store/access.py): {"as_of": the newest timeline entry that was taken into account}.
AS_OF = "learning"
# Entries and candidates taken up in one round, so that the lease of duties is renewed in time.
MOST, MOST_JUDGED = 50, 2
# Of a confirmed incident's telling lines, this many are tried until the gate lets one through.
TRIED = 3


@dataclass(frozen=True, slots=True)
class Learning:
    """`agreeing`: hits that agree with the settled cause, without one against it, that put a rule into use by themselves."""

    store: Store
    pool: MatcherPool
    clock: Clock
    rules_folder: Path
    agreeing: int = 3

    def work(self) -> None:
        """One round."""
        entries = self._news()
        for entry in entries:
            if entry.kind == "feedback":
                self._heed(entry)
            else:
                self._count(entry.incident_id)
        if entries:
            with self.store.writing() as session:
                session.merge(Switch(name=AS_OF, value={"as_of": entries[-1].id}, set_by=ACTOR, set_at=self.clock()))
        with self.store.reading() as session:
            waiting = [row.id for row in in_state(session, CandidateState.PROPOSED)[:MOST_JUDGED]]
        for number in waiting:
            self.judge(number)
        self._promote()

    def _news(self) -> Sequence[TimelineEntry]:
        """What was diagnosed and what people said since, oldest first."""
        with self.store.reading() as session:
            switch = session.get(Switch, AS_OF)
            query = select(TimelineEntry).where(
                TimelineEntry.id > (switch.value["as_of"] if switch else 0), TimelineEntry.kind.in_(("diagnosed", "feedback"))
            )
            return session.scalars(query.order_by(TimelineEntry.id).limit(MOST)).all()

    def _heed(self, entry: TimelineEntry) -> None:
        """What a person said of a verdict settles hits, steps a wrong rule back, and teaches the cause of what was unknown."""
        with self.store.writing() as session:
            incident = session.get_one(Incident, entry.incident_id)
            reason = settled_reason(session, incident)
            self._settle(session, incident.id, reason, entry)
        stored = incident.diagnosis
        if reason is None or stored is None or stored["reason"] not in UNNAMED:
            return
        diagnosis = DIAGNOSIS.validate_python(stored)
        self._teach(incident, diagnosis, reason, entry.actor)

    def _settle(self, session: Session, incident_id: int, reason: str | None, entry: TimelineEntry) -> None:
        said_wrong = entry.data.get("right") is False
        for hit in session.scalars(select(CandidateHit).where(CandidateHit.incident_id == incident_id)):
            row = session.get_one(CandidateRow, hit.candidate_id)
            if reason is not None:
                hit.agrees = row.reason == reason
            else:
                hit.agrees = False if said_wrong and named_by(session, hit, row) else None
            if hit.agrees is False and row.state == CandidateState.ACTIVE:
                told = f"{entry.actor} says that incident {incident_id} is {reason or 'something else'}"
                step_back(session, row, entry.actor, told, self.clock())

    def _teach(self, incident: Incident, diagnosis: Diagnosis, reason: str, by: str) -> None:
        """Candidates from the lines that say what failed, the last first, until the gate lets one through."""
        lines = [line.text for line in kept_lines(self.store, incident.id)]
        for line in list(reversed(cause_lines(diagnosis, lines)))[:TRIED]:
            pattern = line_pattern(line)
            if pattern is None:
                continue
            with self.store.writing() as session:
                row = propose(
                    session,
                    pattern=pattern,
                    reason=reason,
                    title=load_taxonomy()[reason].definition.rstrip("."),
                    cited=(line,),
                    origin=Origin.CONFIRMATION,
                    provenance={"incident": str(incident.id), "job": incident.job, "confirmed_by": by},
                    by=by,
                    now=self.clock(),
                )
            if row is None or self.judge(row.id):
                return

    def judge(self, number: int) -> bool:
        """Put a proposed candidate through the gate; True where it goes into shadow."""
        with self.store.reading() as session:
            row = session.get_one(CandidateRow, number)
        try:
            said = back_test(self.store, self.pool, rule_of(row), row.cited, self.rules_folder)
        except (Overloaded, MatcherDied):
            return False
        with self.store.writing() as session:
            row = session.get_one(CandidateRow, number, populate_existing=True)
            if row.state != CandidateState.PROPOSED:
                return False
            row.judged = said
            if said["passes"]:
                why = f"the gate lets it through: {said['agreeing']} of {said['incidents']} settled incidents agree"
                move_candidate(session, row, CandidateState.SHADOW, "gate", why, self.clock())
            else:
                move_candidate(session, row, CandidateState.REFUSED, "gate", "; ".join(said["objections"])[:1000], self.clock())
            return bool(said["passes"])

    def _count(self, incident_id: int) -> None:
        """Which rules in shadow and in use find a line of a newly diagnosed incident."""
        with self.store.reading() as session:
            alive = [row for row in in_state(session, *ALIVE) if row.role != RuleRole.ROUTINE]
            incident = session.get_one(Incident, incident_id)
        if not alive:
            return
        streams = kept_streams(self.store, incident_id)
        by_code = {row.code: row for row in alive}
        rules = tuple(rule_of(row) for row in alive)
        try:
            found = self.pool.submit(sum(len(item.content) for item in streams), first_lines, rules, streams).result()
        except (Overloaded, MatcherDied):
            return
        with self.store.writing() as session:
            reason = established_by_packs(session, incident)
            for code, line in found.items():
                row = session.get_one(CandidateRow, by_code[code].id)
                if any(hit.incident_id == incident_id for hit in hits_of(session, row.id)):
                    continue
                agrees = None if reason is None else row.reason == reason
                session.add(
                    CandidateHit(candidate_id=row.id, incident_id=incident_id, line=line[:2000], agrees=agrees, at=self.clock())
                )
                if agrees is False and row.state == CandidateState.ACTIVE:
                    step_back(session, row, ACTOR, f"the shipped rules say that incident {incident_id} is {reason}", self.clock())

    def _promote(self) -> None:
        """Shadows that agreed often enough, and never contradicted, go into use."""
        with self.store.reading() as session:
            ready = [row.id for row in in_state(session, CandidateState.SHADOW) if self._is_ready(session, row)]
        for number in ready:
            with self.store.writing() as session:
                row = session.get_one(CandidateRow, number)
                if row.state == CandidateState.SHADOW and self._is_ready(session, row):
                    why = f"{self.agreeing} hits agreed with the settled cause, none contradicted it"
                    move_candidate(session, row, CandidateState.ACTIVE, ACTOR, why, self.clock())

    def _is_ready(self, session: Session, row: CandidateRow) -> bool:
        # What people took out of use comes back only by their hand.
        if any(entry["state"] == CandidateState.ACTIVE for entry in row.history):
            return False
        said: list[Any] = [hit.agrees for hit in hits_of(session, row.id)]
        return 0 < self.agreeing <= said.count(True) and False not in said


def first_lines(tools: Tools, rules: tuple[Rule, ...], streams: Sequence[Any]) -> dict[str, str]:
    """The first line that each rule finds, by the rule's code. Runs in a matcher process."""
    found: dict[str, str] = {}
    for rule, line in found_by(Matcher(rules), streams):
        found.setdefault(rule.code, line.text)
    return found


def named_by(session: Session, hit: CandidateHit, row: CandidateRow) -> bool:
    """Whether the incident's verdict was this rule's."""
    return session.get_one(Incident, hit.incident_id).rule == row.code


def established_by_packs(session: Session, incident: Incident) -> str | None:
    """The cause that people settled or that the shipped rules established."""
    if reason := settled_reason(session, incident):
        return None if str(incident.rule or "").startswith(LEARNT_PREFIX) and incident.source == "rule" else reason
    stored = incident.diagnosis or {}
    learnt = str(stored.get("rule") or "").startswith(LEARNT_PREFIX)
    named = stored.get("reason")
    return str(named) if named and not learnt and named not in UNNAMED else None
