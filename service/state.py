"""What the routes share: built once by service/app.py, reached through `request.app.state.pitstop`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request

from service.settings import Settings
from service.store import Store

__all__ = ["Clock", "Service", "ServiceDependency", "service_of"]

Clock = Callable[[], float]


@dataclass(slots=True)
class Service:
    """The running service: settings, store and clock (seconds since the epoch)."""

    settings: Settings
    store: Store
    clock: Clock = time.time
    started_at: float = field(default_factory=time.time)


def service_of(request: Request) -> Service:
    return cast(Service, request.app.state.pitstop)


ServiceDependency = Annotated[Service, Depends(service_of)]
