"""The way of a body of lines from its door to the disk: matcher process, then writer, then the answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from service.ingest.matching import MatcherPool, Overloaded, Tools
from service.ingest.preparation import Body, Door, Prepared
from service.ingest.writer import Acknowledged, ChunkWriter
from service.metrics import Metrics
from service.retention import Storage

__all__ = ["Intake", "Taken"]


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a body: durable when its sender reads this."""

    prepared: Prepared
    stored: Acknowledged


def prepare_body(tools: Tools, body: Body) -> Prepared:
    return tools.preparer.prepare(body)


class Intake:
    """Hands bodies on as bytes; the event loop that awaits it never looks inside."""

    def __init__(self, pool: MatcherPool, writer: ChunkWriter, metrics: Metrics, storage: Storage) -> None:
        self._pool = pool
        self._storage = storage
        self._writer = writer
        self._metrics = metrics

    async def take(self, body: Body, origin: str, batch_id: str | None) -> Taken:
        """Raises ProtocolError, Overloaded, MatcherDied or WriteFailed; then nothing of the body is stored.

        Without a `batch_id` of its sender's, a Loki or OTLP body sent again is known by its content.
        """
        if self._storage.refusal is not None:
            raise Overloaded(self._storage.refusal)
        work = self._pool.submit(len(body.data), prepare_body, body)
        self._writer.coming += 1
        try:
            prepared = await asyncio.wrap_future(work)
        finally:
            self._writer.coming -= 1
        named = batch_id is not None
        if batch_id is None and body.door is not Door.NDJSON:
            batch_id = f"sha256:{prepared.identity}"
        identity = None if batch_id is None else f"{origin}:{batch_id}"
        stored = await asyncio.wrap_future(self._writer.submit(prepared, body.door, origin, identity, named))
        if not stored.duplicate:
            self._metrics.lines.labels(body.door).inc(prepared.accepted)
            self._metrics.bytes.labels(body.door).inc(prepared.bytes)
            self._metrics.dropped.labels(body.door).inc(prepared.dropped)
        return Taken(prepared, stored)

    def note_error(self, origin: str, door: Door, why: str) -> None:
        """A body of this source was refused."""
        self._writer.origins.note_error(origin, door.value, why)
