"""What the routes share: built once by service/app.py, reached through `request.app.state.pitstop`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

from fastapi import Depends, Request

from service.callers import Callers
from service.database_leases import Arrival, DatabaseLeases
from service.eventstream import EventWatch
from service.heartbeats import Heartbeat, Heartbeats
from service.ingest.intake import Intake
from service.ingest.matching import MatcherPool
from service.localizations import Localizations
from service.metrics import Metrics
from service.plans import Plans
from service.recoveries import Recoveries
from service.said_before import SaidBefore
from service.settings import Settings
from service.store import Clock, Store
from service.store.together import Together
from service.supervisor import Supervisor

__all__ = ["Service", "ServiceDependency", "service_of"]


@dataclass(slots=True)
class Service:
    """The running service. `checks` answer `ok` or what is wrong; `reports` add documents to /readyz."""

    settings: Settings
    store: Store
    watch: EventWatch
    metrics: Metrics
    pool: MatcherPool
    intake: Intake
    recoveries: Recoveries
    supervisor: Supervisor
    localizations: Localizations
    plans: Plans
    leases: DatabaseLeases
    heartbeats: Heartbeats
    callers: Callers
    # A whole cluster may start at once.
    registrations: Together[Arrival]
    first_heartbeats: Together[Heartbeat]
    said_before: SaidBefore
    clock: Clock = time.time
    checks: dict[str, Callable[[], str]] = field(default_factory=dict)
    reports: dict[str, Callable[[], Any]] = field(default_factory=dict)
    # Told of every renewal of a node's lease, where another store than the database is judged by.
    heard: Callable[[str], None] = lambda _node: None
    # Report pages by span in days: when they were added up, and what came of it.
    added_up: dict[int, tuple[float, dict[str, Any]]] = field(default_factory=dict)


def service_of(request: Request) -> Service:
    return cast(Service, request.app.state.pitstop)


# A coroutine, because FastAPI runs plain functions in threads.
async def this_service(request: Request) -> Service:
    return service_of(request)


ServiceDependency = Annotated[Service, Depends(this_service)]
