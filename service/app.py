"""The composition root: everything that runs under `pitstop serve` is built and wired here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from service.access import bootstrap
from service.api import alerts, approvals, commands, events, failures, health, incidents, jobs, nodes
from service.eventstream import EventWatch
from service.gate import Gate
from service.metrics import Metrics
from service.migration import migrate
from service.problems import install_problems
from service.recoveries import Recoveries
from service.settings import Settings
from service.state import Clock, Service
from service.store import Store
from service.supervisor import Supervisor

__all__ = ["create_app"]


def create_app(settings: Settings, clock: Clock = time.time) -> FastAPI:
    """The application on the database that `settings` name, brought to this version's schema when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        store = Store(settings.database_url)
        migrate(store)
        bootstrap(store, settings.data_dir, settings.bootstrap_token_file, clock())
        watch, recoveries = EventWatch(store), Recoveries(store, clock)
        service = Service(settings, store, watch, Metrics(store), recoveries, Supervisor(recoveries, watch), clock)
        app.state.pitstop = service
        running = [asyncio.create_task(service.watch.run()), asyncio.create_task(service.supervisor.run())]
        try:
            yield
        finally:
            service.watch.close()
            service.supervisor.close()
            await asyncio.gather(*running)
            store.close()

    app = FastAPI(title="Pitstop", version=version("pitstop"), lifespan=lifespan, docs_url="/docs", redoc_url=None)
    install_problems(app)
    app.add_middleware(Gate, doors={alerts.PATH: settings.max_body_bytes})
    for module in (alerts, approvals, commands, events, failures, health, incidents, jobs, nodes):
        app.include_router(module.router)
    return app
