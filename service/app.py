"""The composition root: everything that runs under `pitstop serve` is built and wired here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol

from anyio import to_thread
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from rules.artefact import load_matcher
from rules.pack import PACK_FOLDER
from service.access import bootstrap
from service.accounts import Accounts
from service.api import (
    accounts,
    actions,
    alerts,
    approvals,
    candidates,
    collectors,
    commands,
    events,
    failures,
    fleet,
    health,
    incidents,
    jobs,
    joins,
    localizations,
    logs,
    nodes,
    plans,
    rules,
    silences,
    slurm,
    trials,
)
from service.callers import Callers
from service.dashboard import (
    evaluation_pages,
    evidence_page,
    fleet_pages,
    knowledge_pages,
    learning_pages,
    operation_pages,
    pages,
    plan_pages,
    report_pages,
    schedule_pages,
    silence_pages,
)
from service.dashboard.rendering import STATIC, plotly_script
from service.database_leases import DatabaseLeases
from service.diagnoses import Diagnoses
from service.driver_calls import DriverCalls
from service.duties import Duties, Duty
from service.eventstream import EventWatch
from service.gate import Gate
from service.heartbeats import Heartbeats
from service.ingest.intake import Intake
from service.ingest.matching import MatcherPool
from service.ingest.writer import ChunkWriter
from service.learning import Learning
from service.learnt_rules import LearntRules
from service.leases import LeaseWatch
from service.localization_requests import localise_recovery
from service.localizations import Localizations
from service.log_filters import LogFilters
from service.memories import Memories
from service.metrics import Metrics
from service.migration import migrate
from service.node_returns import NodeReturns
from service.notifications.delivery import Delivery
from service.notifications.routes import load_routes
from service.notifications.weekly import WeeklySummary
from service.openapi import declare_refusals
from service.opinions import ModelThread, Opinions, open_client
from service.pipeline_plans import PipelinePlans
from service.plans import Plans
from service.problems import install_problems
from service.reconfigurations import Reconfigurations
from service.recoveries import Recoveries
from service.retention import Retention, Storage
from service.said_before import SaidBefore
from service.settings import Settings, SettingsError
from service.short_way import ShortWay, ShortWays
from service.silences import begin_silences
from service.site_drivers import load_drivers
from service.slurm_calls import SlurmCalls
from service.slurm_watch import SlurmWatch
from service.state import Service
from service.store import Clock, Store
from service.store.together import Together
from service.supervisor import Supervisor

if TYPE_CHECKING:
    from service.etcd_leases import EtcdLeases

__all__ = ["create_app"]

RETENTION_SECONDS = 20.0
SILENCES_SECONDS = 10.0
NOTIFICATIONS_SECONDS = 2.0
MEMORY_SECONDS = 2.0
ACCOUNTS_SECONDS = 10.0
WEEKLY_SECONDS = 600.0
PLANS_SECONDS = 2.0
# In the order in which they are looked through: most requests are of nodes and jobs.
ROUTES = (
    nodes,
    jobs,
    accounts,
    actions,
    alerts,
    approvals,
    candidates,
    collectors,
    commands,
    events,
    failures,
    fleet,
    health,
    incidents,
    joins,
    localizations,
    logs,
    plans,
    rules,
    silences,
    slurm,
    trials,
)


class Part(Protocol):
    """What runs beside the requests for as long as the application does."""

    async def run(self) -> None: ...

    def close(self) -> None: ...


def create_app(settings: Settings, clock: Clock = time.time, shared_pool: MatcherPool | None = None) -> FastAPI:
    """The application on the database that `settings` name, brought to this version's schema when it starts.

    `shared_pool`: matcher processes that outlive the application, instead of its own.
    """

    drivers = load_drivers(settings.drivers_file)
    routes = load_routes(settings.notify_file)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        store = Store(settings.database_url)
        migrate(store)
        bootstrap(store, settings.data_dir, settings.bootstrap_token_file, clock())
        watch, metrics = EventWatch(store), Metrics(store)
        folder = settings.rules_dir or PACK_FOLDER
        # Before the matcher processes start: the first use of new packs compiles them, once, for all.
        rules = (await to_thread.run_sync(load_matcher, folder)).rules
        pool = shared_pool or MatcherPool(settings.matcher_processes, settings.max_waiting_bytes, folder)
        writer = ChunkWriter(store, clock, settings.max_waiting_bytes)
        storage = Storage(store, settings)
        intake = Intake(pool, writer, metrics, storage)
        returns = NodeReturns(store, clock, drivers)
        calls = DriverCalls(store, clock, returns)
        etcd = open_etcd(settings)
        rows, heartbeats = DatabaseLeases(store, clock, settings.lease_seconds), Heartbeats(store, clock)
        leases = LeaseWatch(store, clock, rows if etcd is None else etcd, lambda: duties.held)
        diagnose = Diagnoses(store, pool, metrics, clock, leases.reviewed).of_incident
        localizer = Localizations(store, clock)
        planner = Plans(store, clock, PipelinePlans(settings.data_dir / "pipelines"))
        localise = partial(localise_recovery, localizer)
        recoveries = Recoveries(
            store, clock, returns, diagnose, localise, rules=rules, started_at=clock(), planner=planner, reviewed=leases.reviewed
        )
        localizer.tell = recoveries.tell
        slurm_watch = SlurmWatch(store, clock, recoveries, drivers.slurm)
        chores = [returns.tick, calls.work, slurm_watch.work, Reconfigurations(store, clock, recoveries).tick]
        if drivers.slurm is not None:
            chores.append(SlurmCalls(store, clock, recoveries, drivers.slurm).work)
        supervisor = Supervisor(recoveries, chores)
        callers = Callers(store, clock)
        rooms = settings, store, watch, metrics, pool, intake, recoveries, supervisor, localizer, planner
        first = Together(rows.register), Together(heartbeats.add)
        service = Service(*rooms, rows, heartbeats, callers, *first, SaidBefore(), clock)
        retention = Retention(store, settings, clock)
        client, no_model = open_client(settings, clock)
        memories = Memories(store, clock, no_model or "asked next")
        opinions = Opinions(store, clock, client, no_model, memories, {rule.code: rule for rule in rules})
        learnt = LearntRules(store, pool)
        learning = Learning(store, pool, clock, folder, settings.learnt_agreeing)
        books = Accounts(store, clock)
        work = [
            Duty("retention", RETENTION_SECONDS, retention.work),
            Duty("silences", SILENCES_SECONDS, partial(begin_silences, store, clock)),
            Duty("memory", MEMORY_SECONDS, memories.work),
            Duty("learning", MEMORY_SECONDS, learning.work),
            Duty("accounts", ACCOUNTS_SECONDS, books.work),
            Duty("plans", PLANS_SECONDS, planner.work),
        ]
        if routes is not None:
            delivery = Delivery(store, clock, routes, settings.public_url, metrics)
            work.append(Duty("weekly summary", WEEKLY_SECONDS, WeeklySummary(store, clock).work))
            work.append(Duty("notifications", NOTIFICATIONS_SECONDS, delivery.work))
            service.reports["notifications"] = delivery.report
        duties = Duties(store, clock, work)
        service.reports["leases"] = leases.report
        service.checks |= {"matcher": pool.check, "writer": writer.check, "storage": storage.check}
        service.reports |= {
            "slurm": slurm_watch.report,
            "duties": duties.report,
            "memory": memories.report,
            "plans": planner.report,
            "model": opinions.report,
            "accounts": books.report,
        }
        app.state.pitstop = service
        filters = None if client is None else LogFilters(store, clock, client, pool, learning)
        model = ModelThread(opinions, lambda: duties.held, (lambda: None) if filters is None else filters.work)
        parts: list[Part] = [
            service.watch,
            service.supervisor,
            localizer,
            duties,
            leases,
            rows,
            heartbeats,
            callers,
            storage,
            model,
            learnt,
        ]
        if etcd is not None:
            service.heard = etcd.heard
            parts.append(etcd)
        running = [asyncio.create_task(part.run()) for part in parts]
        try:
            yield
        finally:
            for part in parts:
                part.close()
            await asyncio.gather(*running)
            if shared_pool is None:
                await to_thread.run_sync(pool.close)
            await to_thread.run_sync(writer.close)
            store.close()

    app = FastAPI(title="Pitstop", version=version("pitstop"), lifespan=lifespan, docs_url="/docs", redoc_url=None)
    install_problems(app)
    declare_refusals(app)
    doors = (logs.LOGS_PATH, logs.LOKI_PATH, logs.OTLP_PATH, logs.DIAGNOSE_PATH)
    limits = dict.fromkeys((*doors, alerts.PATH), settings.max_body_bytes)
    short = {("nodes", "lease"): nodes.renew_in_memory, ("jobs", "heartbeat"): jobs.hold_heartbeat}
    app.state.short_ways = ShortWays(short)
    app.add_middleware(ShortWay, ways=app.state.short_ways)
    app.add_middleware(Gate, limits=limits, doors=frozenset(doors), max_held_bytes=settings.max_waiting_bytes)
    for module in ROUTES:
        app.include_router(module.router)
    rooms = (
        evidence_page,
        pages,
        fleet_pages,
        evaluation_pages,
        knowledge_pages,
        learning_pages,
        operation_pages,
        plan_pages,
        report_pages,
        schedule_pages,
        silence_pages,
    )
    for room in rooms:
        app.include_router(room.router)
    app.get("/static/plotly.js", include_in_schema=False)(plotly_script)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def open_etcd(settings: Settings) -> EtcdLeases | None:
    """Raises SettingsError where etcd is asked for and its client is not installed."""
    if settings.etcd is None:
        return None
    try:
        from service.etcd_leases import EtcdLeases
    except ImportError:
        raise SettingsError("PITSTOP_ETCD: needs etcd3gw; install pitstop[etcd]") from None
    return EtcdLeases(settings.etcd, settings.lease_seconds)
