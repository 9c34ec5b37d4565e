"""Agents of one job talk to one another: JSON objects, one a line, over TCP, with a beat in both directions.

A connection that is silent for `SILENT_SECONDS` counts as broken, as one that was reset does: a cut link sends no reset.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Connection", "Listener", "dial", "is_own_address"]

BEAT_SECONDS = 0.5
SILENT_SECONDS = 2.0
DIAL_SECONDS = 1.0
MAX_LINE_BYTES = 4 << 20
BEAT = {"op": "beat"}


class Connection:
    """One connection, between our address `host` and `peer`.

    `on_message` and `on_lost` (once, with the reason) are called from a thread of its own, after `start`.
    """

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(SILENT_SECONDS)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = end
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.host: str = end.getsockname()[0]
        self.peer: str = end.getpeername()[0]

    def start(
        self,
        on_message: Callable[[Connection, Mapping[str, Any]], None],
        on_lost: Callable[[Connection, str], None],
        beat: Callable[[], Mapping[str, Any]] = lambda: BEAT,
    ) -> None:
        threading.Thread(target=self._read, args=(on_message, on_lost), name="channel", daemon=True).start()
        threading.Thread(target=self._beat, args=(beat,), name="channel-beat", daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> bool:
        """False where it is broken; whoever waits for an answer hears of that from `on_lost`."""
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _beat(self, beat: Callable[[], Mapping[str, Any]]) -> None:
        while not self._closed.wait(BEAT_SECONDS) and self.send(beat()):
            pass

    def _read(
        self, on_message: Callable[[Connection, Mapping[str, Any]], None], on_lost: Callable[[Connection, str], None]
    ) -> None:
        buffer = bytearray()
        why = "its agent closed the connection"
        while not self._closed.is_set():
            try:
                part = self._socket.recv(1 << 16)
            except TimeoutError:
                why = f"nothing was heard for {SILENT_SECONDS:g} s"
                break
            except OSError as problem:
                why = problem.strerror or str(problem)
                break
            if not part or len(buffer) > MAX_LINE_BYTES:
                break
            buffer += part
            while b"\n" in buffer:
                line, _, rest = bytes(buffer).partition(b"\n")
                buffer[:] = rest
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        on_message(self, message)
        self.close()
        on_lost(self, why)


class Listener:
    """Accepts connections at `host` and `port` (0: any). Raises OSError where that is taken or not ours."""

    def __init__(self, host: str, port: int, on_connection: Callable[[Connection], None]) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.socket(family, socket.SOCK_STREAM)
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._server.bind((host, port))
            self._server.listen(128)
        except OSError:
            self._server.close()
            raise
        self.port: int = self._server.getsockname()[1]
        self._on_connection = on_connection
        threading.Thread(target=self._accept, name="listener", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._server.accept()
            except OSError:
                return
            self._on_connection(Connection(end))


def dial(host: str, port: int) -> Connection:
    """Raises OSError where nobody listens there."""
    return Connection(socket.create_connection((host, port), DIAL_SECONDS))


def is_own_address(host: str) -> bool:
    """Whether `host` names this machine: whether one of its addresses can be bound here."""
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address[0], 0))
                return True
    return False
