"""The composition root: everything that runs under `pitstop serve` is built and wired here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from service.api import jobs
from service.migration import migrate
from service.problems import install_problems
from service.settings import Settings
from service.state import Clock, Service
from service.store import Store

__all__ = ["create_app"]


def create_app(settings: Settings, clock: Clock | None = None) -> FastAPI:
    """The application on the database that `settings` name, brought to this version's schema when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        store = Store(settings.database_url)
        migrate(store)
        app.state.pitstop = Service(settings, store) if clock is None else Service(settings, store, clock)
        try:
            yield
        finally:
            store.close()

    app = FastAPI(title="Pitstop", version=version("pitstop"), lifespan=lifespan, docs_url="/docs", redoc_url=None)
    install_problems(app)
    for module in (jobs,):
        app.include_router(module.router)
    return app
