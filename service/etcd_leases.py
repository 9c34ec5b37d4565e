"""Leases in etcd: which agents any replica heard of, where a cluster keeps its status there rather than in the database.

A renewal is a put of the node's key, those of a quarter second in one transaction. Who judges goes by the revision of a key,
which only etcd moves, and by when he himself saw it move: no clock of another machine takes part.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import etcd3gw
from anyio import to_thread
from etcd3gw.exceptions import Etcd3Exception
from requests.exceptions import RequestException

from detectors.lease import Lease
from service.leases import LeasesUnknown

__all__ = ["EtcdLeases"]

PREFIX = "/pitstop/leases/"
WRITE_SECONDS = 0.25
ANSWER_SECONDS = 1.0
# etcd takes 128 operations in one transaction (--max-txn-ops).
MOST_OPERATIONS = 100
TROUBLE = (Etcd3Exception, RequestException, ValueError, KeyError)


class EtcdLeases:
    """`address`: http://HOST:PORT of etcd's JSON gateway, which its client port serves."""

    def __init__(self, address: str, ttl_seconds: float) -> None:
        parts = urlsplit(address)
        place = (parts.hostname or "localhost", parts.port or 2379, parts.scheme)
        self._address = address
        self._ttl_seconds = ttl_seconds
        self._client = etcd3gw.client(*place, timeout=ANSWER_SECONDS)
        # One connection is not for two threads.
        self._writer = etcd3gw.client(*place, timeout=ANSWER_SECONDS)
        self._heard: set[str] = set()
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, float]] = {}
        self._stopping = asyncio.Event()

    def heard(self, node: str) -> None:
        """The agent of `node` renewed its lease; from any thread."""
        with self._lock:
            self._heard.add(node)

    async def run(self) -> None:
        """Write what was heard, until `close`. What etcd does not take now is tried again with the next."""
        while not self._stopping.is_set():
            await to_thread.run_sync(self.write)
            try:
                await asyncio.wait_for(self._stopping.wait(), WRITE_SECONDS)
            except TimeoutError:
                continue

    def close(self) -> None:
        self._stopping.set()

    def write(self) -> None:
        with self._lock:
            names, self._heard = self._heard, set()
        try:
            for operations in batched((put(name) for name in sorted(names)), MOST_OPERATIONS):
                self._writer.transaction({"success": operations})
        except TROUBLE:
            with self._lock:
                self._heard |= names

    def leases(self, now: float) -> Sequence[Lease]:
        """As seen at `now`. Raises LeasesUnknown where etcd does not answer."""
        try:
            found = [(meta["key"].decode(), int(meta["mod_revision"])) for _, meta in self._client.get_prefix(PREFIX)]
        except TROUBLE as problem:
            raise LeasesUnknown(f"etcd at {self._address} does not answer: {problem}") from None
        for key, revision in found:
            if self._seen.get(key, (0, now))[0] != revision:
                self._seen[key] = revision, now
        return [Lease(key.removeprefix(PREFIX), at, self._ttl_seconds) for key, (_, at) in self._seen.items()]


def put(node: str) -> dict[str, Any]:
    return {"request_put": {"key": base64.b64encode(f"{PREFIX}{node}".encode()).decode(), "value": ""}}


def batched(items: Iterator[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    while batch := list(islice(items, size)):
        yield batch
