"""Running the application under uvicorn."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from service.app import create_app
from service.known_heads import KnownHeads
from service.settings import Settings
from service.state import Service

__all__ = ["ListenError", "listen", "serve"]

# Open event streams would otherwise hold the process for as long as their clients like.
GRACE_SECONDS = 2
# Longer than clients keep a connection that is not used, else one is closed here that a request is on its way over.
IDLE_SECONDS = 75
# Threads that work on the database let go of the interpreter at every statement, and whoever wants it back waits for so long
# while another is busy. With Python's 5 ms the slowest hundredth of renewals took four times as long, beside the heartbeats of
# 500 nodes.
SWITCH_SECONDS = 0.0005


class ListenError(OSError):
    """The address cannot be listened on; one line that says why."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one. Raises ListenError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with --port") from None
    listener.listen(2048)
    listener.set_inheritable(False)
    return listener


class Server(uvicorn.Server):
    """Told to stop, it lets waiting clients go at once and ends with status 0."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app = app
        self._ready = ready

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does, but what the application raises when it starts reaches the caller."""
        with self.capture_signals():
            async with self._app.router.lifespan_context(self._app):
                self._ready()
                await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True
        service: Service | None = getattr(self._app.state, "pitstop", None)
        if service is not None:
            service.watch.close()


def serve(settings: Settings, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called once the application has started.

    Raises SettingsError, TokenError, DatabaseError, SQLAlchemyError or PackError where it cannot start.
    """
    # Kept lines are for the service's own user.
    os.umask(0o077)
    sys.setswitchinterval(SWITCH_SECONDS)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        http=KnownHeads,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=IDLE_SECONDS,
        log_level="warning",
        access_log=False,
        server_header=False,
        # A forwarded address is no proof of being on this machine; see service/gate.py.
        proxy_headers=False,
        lifespan="off",
    )
    Server(config, app, ready).run(sockets=[listener])
