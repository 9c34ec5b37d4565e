"""The model at work: asked what open incidents may be that neither rules nor memory know, in a thread of its own.

Off the path of any request, and one question at a time: however slow or broken the endpoint is, verdicts of the rules, recovery
and every page go on. What the model says is one more rung of the incident's ladder; it chooses no action.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anyio import to_thread
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from agents.budget import Budget, Usage
from agents.evidence import KeptEvidence, question_of
from agents.failure_agent import FailureAgent, Opinion
from agents.ladder import Ladder, LadderResult
from agents.model import Endpoint, ModelClient, ModelUnavailable, read_endpoint
from agents.placeholders import Placeholders
from rules.diagnosis import Diagnosis
from rules.pack import Rule
from rules.taxonomy import UNNAMED, load_taxonomy
from service.kept_evidence import kept_lines
from service.memories import DIAGNOSIS, Memories, write_result
from service.settings import Settings
from service.store import Clock, Store
from service.store.database import hold_lock
from service.store.incidents import Incident, TimelineEntry
from service.store.jobs import Job, NodeAlias

__all__ = ["ModelThread", "Opinions", "open_client"]

log = logging.getLogger("pitstop.opinions")

LOOK_SECONDS = 2.0
# How long the end of the service waits for an answer that is under way; an answer that comes later is not stored.
FAREWELL_SECONDS = 1.0
# Lines of the incident that the tools may look at.
MOST_LINES = 20_000
DAY_SECONDS = 86_400.0


def open_client(settings: Settings, clock: Clock) -> tuple[ModelClient | None, str]:
    """The client of the model that the settings name, or None and why there is none. Never raises: serving needs no model."""
    if not settings.llm_base_url:
        return None, "no model is configured (PITSTOP_LLM_BASE_URL, see docs/models.md)"
    if importlib.util.find_spec("openai") is None:
        return None, "openai not installed: pip install 'pitstop[llm]'"
    try:
        named = read_endpoint(settings.llm_base_url, settings.llm_model, settings.llm_api_key_file)
    except ModelUnavailable as error:
        return None, str(error)
    endpoint = Endpoint(named.base_url, named.model, named.api_key, settings.llm_timeout_seconds)
    budget = Budget(settings.llm_tokens_per_incident, settings.llm_tokens_per_day, settings.llm_price_in, settings.llm_price_out)
    return ModelClient(endpoint, budget, clock=clock), ""


@dataclass(slots=True)
class Opinions:
    """Asks the model about one incident after another. `off`: why there is no model."""

    store: Store
    clock: Clock
    client: ModelClient | None
    off: str
    memories: Memories
    rules: Mapping[str, Rule] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)
    _resumed: bool = False

    def report(self) -> dict[str, Any]:
        """For /readyz and the dashboard: whether a model is asked, what it may cost and has cost today, on every replica."""
        if self.client is None:
            return {"on": False, "why": self.off}
        spent, asked, answered = self._spent_today()
        budget = self.client.budget
        return {
            "on": self.client.refusal() is None,
            "why": self.client.state,
            "asked_today": asked,
            "answered_today": answered,
            "tokens_today": spent.tokens,
            "tokens_per_day": budget.tokens_per_day,
            "cost_today": round(budget.cost(spent), 4),
        }

    def work(self) -> bool:
        """Ask about the oldest incident that waits for it; False where none waits or the model may not be asked now."""
        if self.client is None:
            return False
        if not self._resumed:
            # What was spent before a restart counts against the day's budget too.
            self.client.ledger.spend("", self._spent_today()[0], self.clock())
            self._resumed = True
        if self.client.refusal() is not None:
            return False
        with self.store.reading() as session:
            waiting = unasked(session)
        if waiting is None:
            return False
        self._ask(self.client, waiting)
        return True

    def _ask(self, client: ModelClient, incident_id: int) -> None:
        with self.store.reading() as session:
            incident = session.get_one(Incident, incident_id)
            earlier = climbed(session, incident_id)
            hide = placeholders_of(session, incident)
        diagnosis = DIAGNOSIS.validate_python(incident.diagnosis)
        kept = kept_lines(self.store, incident_id)[-MOST_LINES:]
        lines = {number: line.text for number, line in enumerate(kept, 1)}
        opinion: Opinion | None = None

        def second_opinion(diagnosis: Diagnosis) -> Opinion:
            nonlocal opinion
            tools = KeptEvidence(lines, self.rules, self.memories.alike, self._history)
            question = question_of(diagnosis, lines, str(incident_id), (f"{incident.job} failed", *self._history(incident.node)))
            opinion = FailureAgent(client, load_taxonomy()).ask(question, tools, hide)
            return opinion

        ladder = Ladder(load_taxonomy(), None, second_opinion, time.monotonic)
        result = ladder.climb(diagnosis)
        if opinion is None or self.stopping.is_set():
            return
        quotes = [
            {"path": kept[number - 1].path, "line": kept[number - 1].number, "text": lines[number]} for number in opinion.lines
        ]
        with self.store.writing() as session:
            hold_lock(session, f"job:{incident.job}")
            incident = session.get_one(Incident, incident_id, populate_existing=True)
            # Somebody may have settled it, or asked, meanwhile.
            if unasked(session, incident_id) is None:
                return
            own = [rung for rung in result.rungs if rung.source.value not in {item["rung"] for item in earlier}]
            write_result(
                session,
                incident,
                LadderResult(result.diagnosis, tuple(own)),
                self.clock(),
                "opinion",
                earlier,
                quotes=quotes,
                user_fault=opinion.user_fault,
                mitigation=opinion.mitigation,
                falsifier=opinion.falsifier,
                refused=list(opinion.refused),
                tokens_in=opinion.usage.tokens_in,
                tokens_out=opinion.usage.tokens_out,
            )

    def _history(self, node: str | None) -> list[str]:
        """What befell a node before, a sentence each, the newest first."""
        if not node:
            return []
        with self.store.reading() as session:
            rows = session.scalars(select(Incident).where(Incident.node == node).order_by(Incident.id.desc()).limit(10)).all()
        return [f"node {node}: {row.reason} ({row.severity}), {row.occurrences} times: {row.summary[:120]}" for row in rows]

    def _spent_today(self) -> tuple[Usage, int, int]:
        """Tokens, questions and answers of this day (UTC), of all replicas."""
        began = self.clock() // DAY_SECONDS * DAY_SECONDS
        with self.store.reading() as session:
            rows = session.execute(
                select(TimelineEntry.data, TimelineEntry.actor).where(
                    TimelineEntry.kind == "opinion", TimelineEntry.time >= began
                )
            ).all()
        usage = Usage(sum(data.get("tokens_in", 0) for data, _ in rows), sum(data.get("tokens_out", 0) for data, _ in rows))
        return usage, len(rows), sum(actor == "llm" for _, actor in rows)


@dataclass(slots=True)
class ModelThread:
    """Runs one replica's `opinions` in a thread that the service's end does not wait for; only the holder of the duties asks.

    `chore`: what else is asked of the model where no incident waits.
    """

    opinions: Opinions
    is_holder: Callable[[], bool]
    chore: Callable[[], object] = lambda: None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until `close`."""
        if self.opinions.client is None:
            await self._stopping.wait()
            return
        thread = threading.Thread(target=self._work, name="model", daemon=True)
        thread.start()
        await self._stopping.wait()
        self.opinions.stopping.set()
        await to_thread.run_sync(thread.join, FAREWELL_SECONDS)

    def close(self) -> None:
        self._stopping.set()

    def _work(self) -> None:
        stopping = self.opinions.stopping
        while not stopping.is_set():
            try:
                more = self.is_holder() and self.opinions.work()
                if not more and self.is_holder():
                    self.chore()
            except SQLAlchemyError as error:
                more = False
                log.warning("the model waits for the database: %s", str(error).splitlines()[0])
            except Exception:
                more = False
                log.exception("the model could not be asked")
            if not more:
                stopping.wait(LOOK_SECONDS)


def unasked(session: Session, incident_id: int | None = None) -> int | None:
    """The oldest open incident (or that one) that memory could not name and that the model has not been asked about since."""

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
        newest("ladder") > newest("diagnosed"),
        newest("ladder") > newest("opinion"),
    )
    if incident_id is not None:
        query = query.where(Incident.id == incident_id)
    return session.scalar(query.order_by(Incident.id).limit(1))


def climbed(session: Session, incident_id: int) -> list[dict[str, Any]]:
    """The rungs that spoke before the model: the rules and memory."""
    entry = session.scalar(
        select(TimelineEntry)
        .where(TimelineEntry.incident_id == incident_id, TimelineEntry.kind == "ladder")
        .order_by(TimelineEntry.id.desc())
        .limit(1)
    )
    return [rung for rung in (entry.data["rungs"] if entry else ()) if rung["rung"] in ("rule", "memory")]


def placeholders_of(session: Session, incident: Incident) -> Placeholders:
    """What must not leave the machine: the names of the job's nodes, their aliases, its owner and contact."""
    job = session.get(Job, incident.job) if incident.job else None
    nodes = {*(job.nodes if job else ()), *([incident.node] if incident.node else ())}
    aliases = set(session.scalars(select(NodeAlias.alias).where(NodeAlias.node.in_(nodes)))) if nodes else set()
    users = {name for name in ((job.owner, job.contact) if job else ()) if name}
    return Placeholders(nodes | aliases, users)
