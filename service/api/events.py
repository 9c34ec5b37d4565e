"""The stream of events for live pages and other programs (Server-Sent Events, resumable by Last-Event-ID)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import StreamingResponse

from service.access import Right, allow
from service.problems import Problem
from service.state import Service, ServiceDependency, service_of
from service.store.database import timestamp
from service.store.events import Event, events_after, last_event_id

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/events", tags=["events"])

# A comment this often keeps proxies from closing a silent stream.
KEEPALIVE_SECONDS = 15.0
PAGE = 200


def server_sent(event: Event) -> str:
    """One event in the wire form; JSON holds no newline, so `data` is one line."""
    document = {"id": event.id, "time": timestamp(event.time), "kind": event.kind, "subject": event.subject, "data": event.data}
    return f"id: {event.id}\nevent: {event.kind}\ndata: {json.dumps(document, ensure_ascii=False)}\n\n"


def page_after(service: Service, after: int) -> list[Event]:
    with service.store.reading() as session:
        return list(events_after(session, after, PAGE))


def newest(service: Service) -> int:
    with service.store.reading() as session:
        return last_event_id(session)


async def changes(request: Request, every: float) -> AsyncIterator[str]:
    """At most one message in `every` seconds, however many events there are: the newest event's id, under the name `changed`."""
    service = service_of(request)
    yield "retry: 1000\n\n"
    after = await anyio.to_thread.run_sync(newest, service)
    while not service.watch.closing:
        if await service.watch.wait_after(after, KEEPALIVE_SECONDS):
            after = service.watch.last_id
            yield f"id: {after}\nevent: changed\ndata: {{}}\n\n"
            await anyio.sleep(every)
        elif service.watch.closing or await request.is_disconnected():
            return
        else:
            yield ": still here\n\n"


async def stream(request: Request, after: int) -> AsyncIterator[str]:
    service = service_of(request)
    # At once, so that clients know that they are connected.
    yield "retry: 1000\n\n"
    while not service.watch.closing:
        page = await anyio.to_thread.run_sync(page_after, service, after)
        for event in page:
            yield server_sent(event)
            after = event.id
        if len(page) < PAGE and not await service.watch.wait_after(after, KEEPALIVE_SECONDS):
            if service.watch.closing or await request.is_disconnected():
                return
            yield ": still here\n\n"


@router.get("", operation_id="streamEvents", dependencies=[Depends(allow(Right.READ))], response_class=StreamingResponse)
async def stream_events(
    request: Request,
    service: ServiceDependency,
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    every: Annotated[float | None, Query(ge=0.1, le=60, description="only say that something changed, this seldom")] = None,
) -> StreamingResponse:
    """Events in commit order: those after Last-Event-ID (or `after`), then new ones as they come."""
    if every is not None:
        return StreamingResponse(changes(request, every), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
    if last_event_id is not None and not (last_event_id.isdecimal() and len(last_event_id) < 19):
        raise Problem(422, "Last-Event-ID: send back the id of an event of this stream")
    if last_event_id is not None:
        after = int(last_event_id)
    if after is None:
        after = await anyio.to_thread.run_sync(newest, service)
    return StreamingResponse(stream(request, after), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
