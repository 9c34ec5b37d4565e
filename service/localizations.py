"""Directs the agents of a job through a fault localisation: its ranks are stopped first, then batch after batch of probes.

Every step is one transaction on stored rows, so that any replica goes on where another one died. Answers of agents are gathered
and written together: a thousand of them come at once.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from anyio import to_thread
from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from recovery.localization.answers import Answer, combine
from recovery.localization.judgement import judge
from recovery.localization.limits import FIRST_WORLD_SECONDS, alone_limit, world_limit
from recovery.localization.probes import Localization, Pool, Probe
from recovery.localization.rounds import Effort, next_probes
from recovery.localization.standing import Ledger
from recovery.states import Event, Localised, Stage
from service.localization_documents import pool_of, read_answer, result_of, verdict_document
from service.store import Clock, Store
from service.store.access import audit
from service.store.database import hold_lock
from service.store.events import publish_event
from service.store.jobs import Node
from service.store.localizations import DONE, PROBING, STOPPING, LocalizationRow, ProbeRow, probes_of, under_way
from service.store.recoveries import CommandRow, RecoveryRow
from service.timeline import add_timeline

__all__ = ["ABLE_SECONDS", "Localizations", "Request", "able_nodes"]

log = logging.getLogger("pitstop.localizations")

# An agent that offered probes within this time is asked.
ABLE_SECONDS = 15.0
# Ranks that were not confirmed to be gone by then are probed beside: what is left of a failed job computes nothing.
STOP_SECONDS = 8.0
# An answer may come this much after the limit of its probe.
ANSWER_SECONDS = 2.5
# The verdict is there before the workflow gives up waiting for it.
SPARE_SECONDS = 3.0
PAYLOAD_BYTES = {"gloo": 2 << 20, "nccl": 64 << 20}
POLL_SECONDS = 0.25
IDLE_SECONDS = 1.0
DELIVERY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """Whom to look at, for whom, until when. `stop`: nodes whose agents first stop the ranks of `job` under `generation`."""

    pool: Pool
    asked_by: str
    until: float
    job: str | None = None
    generation: int = 0
    stop: tuple[str, ...] = ()
    recovery: int | None = None
    incident: int | None = None


@dataclass(slots=True)
class Delivered:
    command: int
    status: str
    generation: int
    detail: str
    answer: dict[str, Any] | None
    stored: Future[None] = field(default_factory=Future)


def able_nodes(session: Session, nodes: Sequence[str], now: float) -> dict[str, str]:
    """Of these nodes, those whose agents offer probes now, with the backend."""
    rows = session.execute(select(Node.id, Node.probes).where(Node.id.in_(nodes), Node.probes_at > now - ABLE_SECONDS))
    return {row.id: row.probes for row in rows}


@dataclass(slots=True)
class Localizations:
    """`tell`: hands an event to the recovery that asked, in the caller's transaction."""

    store: Store
    clock: Clock
    effort: Effort = field(default_factory=Effort)
    tell: Callable[[Session, int, Event], object] | None = None
    _inbox: queue.SimpleQueue[Delivered] = field(default_factory=queue.SimpleQueue)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _loop: asyncio.AbstractEventLoop | None = None
    _closing: bool = False
    _ledgers: dict[int, Ledger] = field(default_factory=dict)

    def begin(self, session: Session, request: Request) -> int | str:
        """Store a localisation to be carried out; its id, or why there can be none."""
        now, pool = self.clock(), request.pool
        able = able_nodes(session, pool.everyone, now)
        if not any(node in able for node in pool.nodes):
            return "no agent on its nodes offers probes: the place stays unknown"
        backends = {able[node] for node in able}
        row = LocalizationRow(
            recovery_id=request.recovery,
            incident_id=request.incident,
            job=request.job,
            asked_by=request.asked_by,
            pool={"nodes": pool.nodes, "spares": pool.spares, "groups": {node: list(of) for node, of in pool.groups.items()}},
            able=sorted(able),
            state=STOPPING,
            started_at=now,
            until=request.until,
            turn_until=now + (STOP_SECONDS if request.stop else 0.0),
            probe_seconds=FIRST_WORLD_SECONDS,
            # Where some nodes have no GPU that can be probed, all are probed in the way that all can.
            backend="nccl" if backends == {"nccl"} else "gloo",
            endpoints={},
        )
        session.add(row)
        session.flush()
        hold_lock(session, "commands")
        hold = {"hold": True, "hold_seconds": request.until - now, "why": "to be probed"}
        for node in request.stop:
            session.add(
                CommandRow(
                    key=f"localization/{row.id}/stop/{node}",
                    node=node,
                    job=request.job,
                    generation=request.generation,
                    kind="stop_ranks",
                    args=hold,
                    deadline=now + STOP_SECONDS,
                    created_at=now,
                    recovery_id=request.recovery,
                    localization_id=row.id,
                )
            )
        audit(session, request.asked_by, "localisation.begin", request.job or ", ".join(pool.nodes[:8]), "", {"id": row.id}, now)
        publish_event(session, "localisation.begun", str(row.id), {"job": request.job, "nodes": len(pool.nodes)}, now)
        self.nudge()
        return row.id

    def deliver(self, command: int, status: str, generation: int, detail: str, answer: dict[str, Any] | None) -> None:
        """Store an agent's answer, together with the others that are there. Raises TimeoutError where that takes too long."""
        item = Delivered(command, status, generation, detail, answer)
        self._inbox.put(item)
        self.nudge()
        item.stored.result(DELIVERY_SECONDS)

    def nudge(self) -> None:
        """Something is to be done; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Until `close`."""
        self._loop = asyncio.get_running_loop()
        while not self._closing:
            active = False
            try:
                active = await to_thread.run_sync(self.tick)
            except SQLAlchemyError as error:
                log.warning("localisations wait for the database: %s", str(error).splitlines()[0])
            except Exception:
                log.exception("a localisation could not be advanced")
            try:
                await asyncio.wait_for(self._wake.wait(), POLL_SECONDS if active else IDLE_SECONDS)
            except TimeoutError:
                continue
            finally:
                self._wake.clear()

    def close(self) -> None:
        self._closing = True
        self._wake.set()

    def tick(self) -> bool:
        """Write what was delivered, and take every localisation as far as it goes; True while there is one."""
        self._store_delivered()
        with self.store.reading() as session:
            active = under_way(session)
            due = [number for number in active if self._is_due(session, number)]
        for number in due:
            with self.store.writing() as session:
                hold_lock(session, f"localization:{number}")
                row = session.get_one(LocalizationRow, number, populate_existing=True)
                if row.state != DONE and self._is_due(session, number):
                    self._advance(session, row)
        return bool(active)

    def _store_delivered(self) -> None:
        items: list[Delivered] = []
        while not self._inbox.empty():
            items.append(self._inbox.get())
        if not items:
            return
        now = self.clock()
        values = [
            {
                "id": item.command,
                "status": item.status,
                "detail": item.detail,
                "answered_generation": item.generation,
                "answered_at": now,
                "answer": item.answer,
            }
            for item in items
        ]
        try:
            with self.store.writing() as session:
                session.execute(update(CommandRow), values)
        except Exception as problem:
            for item in items:
                item.stored.set_exception(problem)
            raise
        for item in items:
            item.stored.set_result(None)

    def _is_due(self, session: Session, number: int) -> bool:
        """Whether nobody's answer is waited for any more."""
        row = session.get_one(LocalizationRow, number)
        if self.clock() >= row.turn_until:
            return True
        waited = (CommandRow.localization_id == number, CommandRow.status.is_(None), CommandRow.deadline > self.clock())
        return not session.scalar(select(func.count()).where(*waited))

    def _advance(self, session: Session, row: LocalizationRow) -> None:
        now = self.clock()
        if self._overtaken(session, row):
            row.state, row.ended_at, row.detail = DONE, now, "overtaken: the job went on, or is given up"
            self._ledgers.pop(row.id, None)
            return
        ledger = self._ledger(session, row)
        if row.state == STOPPING:
            row.state = PROBING
        else:
            self._collect(session, row, ledger)
        limit = row.until - row.started_at - SPARE_SECONDS
        effort = Effort(seconds=limit, batch_seconds=row.probe_seconds + ANSWER_SECONDS)
        batch = next_probes(ledger, effort, now - row.started_at)
        if batch:
            self._ask(session, row, batch, now)
        else:
            self._end(session, row, judge(ledger), now)

    def _overtaken(self, session: Session, row: LocalizationRow) -> bool:
        if row.recovery_id is None:
            return False
        recovery = session.get_one(RecoveryRow, row.recovery_id)
        return recovery.over or recovery.stage not in (Stage.DECIDED.value, Stage.APPROVED.value)

    def _ledger(self, session: Session, row: LocalizationRow) -> Ledger:
        """The results so far; read from the store where this process does not have them all."""
        asked = session.scalar(select(func.max(ProbeRow.turn)).where(ProbeRow.localization_id == row.id))
        known = self._ledgers.get(row.id)
        if known is not None and known.turns == (0 if asked is None else asked):
            return known
        ledger = Ledger(pool_of(row))
        ledger.add(result for probe in probes_of(session, row.id) if (result := result_of(probe)) is not None)
        self._ledgers[row.id] = ledger
        return ledger

    def _collect(self, session: Session, row: LocalizationRow, ledger: Ledger) -> None:
        """The results of the last batch, from its members' answers."""
        waiting = session.execute(
            select(ProbeRow.id, ProbeRow.turn, ProbeRow.round, ProbeRow.members).where(
                ProbeRow.localization_id == row.id, ProbeRow.outcome.is_(None)
            )
        ).all()
        first = min((probe.id for probe in waiting), default=0)
        said = session.execute(
            select(CommandRow.probe_id, CommandRow.node, CommandRow.status, CommandRow.detail, CommandRow.answer).where(
                CommandRow.localization_id == row.id, CommandRow.probe_id >= first
            )
        ).all()
        answers: dict[int, dict[str, Answer]] = {}
        endpoints = dict(row.endpoints)
        for item in said:
            if item.status is None:
                # Whoever does not answer is not asked to run a store.
                endpoints.pop(item.node, None)
                continue
            answer, endpoint = read_answer(item.status, item.detail, item.answer)
            answers.setdefault(item.probe_id, {})[item.node] = answer
            if endpoint is not None:
                endpoints[item.node] = endpoint
        results, values = [], []
        for probe in waiting:
            result = combine(Probe(probe.turn, probe.round, tuple(probe.members)), answers.get(probe.id, {}))
            results.append(result)
            values.append(
                {"id": probe.id, "outcome": result.outcome.value, "seconds": result.seconds, "error": result.error[:1000]}
            )
        if values:
            session.execute(update(ProbeRow), values)
        row.endpoints = endpoints
        alone = not ledger.results
        passed = {
            value["id"] for value, result in zip(values, results, strict=True) if alone or (result.passed and not result.alone)
        }
        took = [item.answer["took"] for item in said if item.probe_id in passed and item.answer and item.answer.get("took")]
        row.probe_seconds = world_limit(row.probe_seconds, took, alone)
        ledger.add(results)

    def _ask(self, session: Session, row: LocalizationRow, batch: Sequence[Probe], now: float) -> None:
        """Command a batch. Members whose agents offer no probes, or that cannot be reached, are silent at once."""
        able = frozenset(row.able)
        stored = session.scalars(
            insert(ProbeRow).returning(ProbeRow.id, sort_by_parameter_order=True),
            [
                {"localization_id": row.id, "turn": probe.turn, "round": probe.round, "members": list(probe.members), "error": ""}
                for probe in batch
            ],
        ).all()
        limits = [alone_limit(probe.turn, row.probe_seconds) if len(probe.members) == 1 else row.probe_seconds for probe in batch]
        commands = []
        for number, probe, limit in zip(stored, batch, limits, strict=True):
            hosts = [node for node in probe.members if node in row.endpoints] if len(probe.members) > 1 else []
            if not able.issuperset(probe.members) or (len(probe.members) > 1 and not hosts):
                continue
            members = [*hosts[:1], *(node for node in probe.members if node not in hosts[:1])]
            for index, node in enumerate(members):
                args: dict[str, Any] = {
                    "op": "world" if hosts else "alone",
                    "id": f"{row.id}.{probe.turn}.{number}",
                    "backend": row.backend,
                    "bytes": PAYLOAD_BYTES[row.backend],
                    "seconds": limit,
                }
                if hosts:
                    host, port = row.endpoints[hosts[0]]
                    args |= {"index": index, "members": len(members), "local": 1, "host": host, "port": port}
                commands.append(
                    {
                        "key": f"localization/{row.id}/{number}/{node}",
                        "node": node,
                        "job": None,
                        "generation": 0,
                        "kind": "probe",
                        "args": args,
                        "deadline": now + limit + ANSWER_SECONDS,
                        "created_at": now,
                        "localization_id": row.id,
                        "probe_id": number,
                    }
                )
        hold_lock(session, "commands")
        if commands:
            session.execute(insert(CommandRow), commands)
        row.turn_until = now + max(limits) + ANSWER_SECONDS if commands else now
        publish_event(session, "command.issued", str(row.id), {"kind": "probe", "commands": len(commands)}, now)
        self.nudge()

    def _end(self, session: Session, row: LocalizationRow, found: Localization, now: float) -> None:
        row.state, row.ended_at, row.detail = DONE, now, found.summary
        row.verdict = verdict_document(found)
        self._ledgers.pop(row.id, None)
        data = {"localization": row.id, "isolate": list(found.isolate)}
        if row.incident_id is not None:
            text = f"{found.summary}; {len(found.results)} probes"
            add_timeline(session, row.incident_id, "probed", text, data=data, seconds=now - row.started_at, at=now)
        publish_event(session, "localisation.done", str(row.id), data | {"summary": found.summary}, now)
        if row.recovery_id is not None and self.tell is not None:
            nodes = tuple(node for node in found.isolate if node in row.pool["nodes"])
            self.tell(session, row.recovery_id, Localised(now, found.summary, nodes))
