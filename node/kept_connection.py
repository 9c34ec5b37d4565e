"""One HTTP connection, kept between calls: a general client takes three times as long for what an agent says every second."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Mapping
from functools import cache
from http.client import HTTPConnection, HTTPSConnection
from urllib.parse import urlsplit

__all__ = ["KeptConnection"]

# What lies between may forget a connection on which nothing is said, and tell nobody.
IDLE_SECONDS = 5.0


@cache
def trusted_authorities() -> ssl.SSLContext:
    """The system's, read once: an agent has five clients, and each reading takes a tenth of a second."""
    import httpx2

    return httpx2.create_ssl_context(trust_env=False)


class KeptConnection:
    """To one service, for one thread. `headers` go with every request. Raises ValueError for what is no address."""

    def __init__(self, service: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(service)
        host, self._prefix, self._headers = parts.hostname or "", parts.path.rstrip("/"), dict(headers)
        # The service is in the cluster: a proxy of the environment, which this does not ask, is for other places.
        self._connection = (
            HTTPSConnection(host, parts.port or 443, context=trusted_authorities())
            if parts.scheme == "https"
            else HTTPConnection(host, parts.port or 80)
        )
        self._used_at = 0.0

    def close(self) -> None:
        self._connection.close()

    def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout_seconds: float
    ) -> tuple[int, bytes]:
        """The status and the content of the answer; `timeout_seconds` bounds each wait for the other side.

        Raises OSError, HTTPException, ValueError; the next request then has a new connection.
        """
        connection = self._connection
        kept: socket.socket | None = connection.sock
        if kept is not None and (time.monotonic() - self._used_at > IDLE_SECONDS or is_over(kept)):
            connection.close()
            kept = None
        connection.timeout = timeout_seconds
        if kept is not None:
            kept.settimeout(timeout_seconds)
        try:
            connection.request(method, self._prefix + path, body, {**self._headers, **headers})
            answer = connection.getresponse()
            content = answer.read()
        except BaseException:
            connection.close()
            raise
        self._used_at = time.monotonic()
        return answer.status, content


def is_over(kept: socket.socket) -> bool:
    """Whether the other side has closed it: nothing else can be read when nothing was asked."""
    waiting = select.poll()
    waiting.register(kept, select.POLLIN)
    return bool(waiting.poll(0))
