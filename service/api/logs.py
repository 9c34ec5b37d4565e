"""The doors for lines, reading them back, and the diagnosis of a text."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from rules.diagnosis import diagnosis_document
from service.access import Principal, PrincipalDependency, Right, Role, allow
from service.diagnoses import diagnose_text
from service.ingest.intake import Taken
from service.ingest.matching import MatcherDied, Overloaded
from service.ingest.otlp import partial_success
from service.ingest.preparation import Body, Door
from service.ingest.protocol import Limits, ProtocolError, TooLarge
from service.ingest.writer import WriteFailed
from service.keptlines import LineQuery, read_page
from service.openapi import raw_body
from service.problems import Problem
from service.state import Service, ServiceDependency

__all__ = ["DIAGNOSE_PATH", "LOGS_PATH", "LOKI_PATH", "OTLP_PATH", "router"]

LOGS_PATH = "/api/v1/logs"
LOKI_PATH = "/loki/api/v1/push"
OTLP_PATH = "/v1/logs"
DIAGNOSE_PATH = "/api/v1/diagnose"
BATCH_ID = re.compile(r"[\x21-\x7e]{1,128}")
RETRY_SECONDS = "1"

BYTES = {"type": "string", "format": "binary"}
LOKI_STREAM = {
    "type": "object",
    "required": ["stream", "values"],
    "properties": {
        "stream": {"type": "object", "additionalProperties": {"type": "string"}},
        "values": {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 3}},
    },
}
LOKI_JSON = {"type": "object", "required": ["streams"], "properties": {"streams": {"type": "array", "items": LOKI_STREAM}}}
OTLP_JSON = {"type": "object", "properties": {"resourceLogs": {"type": "array", "items": {"type": "object"}}}}
NDJSON_BODY = raw_body(application_x_ndjson=BYTES)
LOKI_BODY = raw_body(application_json=LOKI_JSON, application_x_protobuf=BYTES)
OTLP_BODY = raw_body(application_json=OTLP_JSON, application_x_protobuf=BYTES)
TEXT_BODY = raw_body(text_plain={"type": "string"})

router = APIRouter(tags=["logs"])


async def take(request: Request, service: Service, principal: Principal, door: Door) -> Taken:
    """Store a body, or raise the Problem that says why not."""
    settings = service.settings
    batch_id = request.headers.get("pitstop-batch")
    if batch_id is not None and not BATCH_ID.fullmatch(batch_id):
        raise Problem(400, "Pitstop-Batch must be 1 to 128 printable characters without blanks")
    source = request.headers.get("x-scope-orgid") or principal.name
    if principal.role is Role.INGEST and not principal.bound_to(source):
        raise Problem(403, f"the token {principal.name!r} may not name the source {source!r}")
    body = Body(
        door=door,
        data=await request.body(),
        content_type=request.headers.get("content-type", "").partition(";")[0].strip().lower(),
        encoding=request.headers.get("content-encoding", "").strip().lower(),
        limits=Limits(settings.max_decoded_bytes, settings.max_line_bytes, settings.max_nesting),
        job_keys=settings.job_keys,
        received_at=service.clock(),
        vouching_nodes=principal.binding if principal.role is Role.NODE else (),
    )
    origin = f"{door}/{source[:200]}"
    try:
        return await service.intake.take(body, origin, batch_id)
    except TooLarge as error:
        raise refused(service, door, origin, "too large", Problem(413, str(error))) from None
    except ProtocolError as error:
        raise refused(service, door, origin, "malformed", Problem(400, str(error))) from None
    except (Overloaded, MatcherDied, WriteFailed) as error:
        retry = Problem(503, str(error), headers={"Retry-After": RETRY_SECONDS})
        raise refused(service, door, origin, "overload" if isinstance(error, Overloaded) else "failed", retry) from None


def refused(service: Service, door: Door, origin: str, why: str, problem: Problem) -> Problem:
    service.metrics.refused.labels(door, why).inc()
    service.intake.note_error(origin, door, problem.detail)
    return problem


@router.post(LOGS_PATH, operation_id="storeLogs", dependencies=[Depends(allow(Right.INGEST))], openapi_extra=NDJSON_BODY)
async def store_logs(request: Request, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """A batch of lines as NDJSON, stored whole or not at all. With a `Pitstop-Batch` id, sending it again stores nothing and gets
    the same counts.

    A record is `{"job", "attempt", "node", "rank", "path", "number", "time", "line"}`, of which only `line` must be there.
    `number` is the line's in its file, from 1 on. With `"lines": n` the record holds `n` lines of the file in a row: `line` is
    all of them, each with its line feed, and `number` the first one's.
    """
    stored = (await take(request, service, principal, Door.NDJSON)).stored
    return {"accepted": stored.accepted, "kept": stored.kept, "dropped": stored.dropped, "duplicate": stored.duplicate}


@router.post(
    LOKI_PATH, status_code=204, operation_id="pushLoki", dependencies=[Depends(allow(Right.INGEST))], openapi_extra=LOKI_BODY
)
async def push_loki(request: Request, service: ServiceDependency, principal: PrincipalDependency) -> Response:
    """Loki's push API: JSON, or a snappy block of protobuf."""
    await take(request, service, principal, Door.LOKI)
    return Response(status_code=204)


@router.post(
    OTLP_PATH,
    operation_id="exportOtlpLogs",
    dependencies=[Depends(allow(Right.INGEST))],
    response_class=Response,
    openapi_extra=OTLP_BODY,
)
async def export_otlp(request: Request, service: ServiceDependency, principal: PrincipalDependency) -> Response:
    """OTLP/HTTP logs. Records that could not be taken are counted in `partialSuccess`."""
    taken = await take(request, service, principal, Door.OTLP)
    as_json = "json" in request.headers.get("content-type", "")
    answer = partial_success(taken.prepared.rejected, taken.prepared.why_rejected, as_json)
    return Response(answer, media_type="application/json" if as_json else "application/x-protobuf")


def moment(value: str | None, name: str) -> float | None:
    """Seconds since the epoch from a number or an RFC 3339 time."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            raise Problem(422, f"{name}: give seconds since the epoch, or a time like 2026-01-31T12:00:00Z") from None
        seconds = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    if not -1e11 < seconds < 1e11:
        raise Problem(422, f"{name}: out of range")
    return seconds


@router.get(LOGS_PATH, operation_id="readLogs", dependencies=[Depends(allow(Right.READ))])
def read_logs(
    service: ServiceDependency,
    job: Annotated[str | None, Query(max_length=255)] = None,
    node: Annotated[str | None, Query(max_length=255)] = None,
    rank: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    attempt: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    since: Annotated[str | None, Query(alias="from", max_length=64)] = None,
    until: Annotated[str | None, Query(alias="to", max_length=64)] = None,
    contains: Annotated[str | None, Query(max_length=1024)] = None,
    limit: Annotated[int, Query(ge=1, le=5000)] = 500,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Kept lines, exactly as stored, in the order in which they arrived."""
    begin, end = moment(since, "from"), moment(until, "to")
    if begin is not None and end is not None and begin > end:
        raise Problem(422, "from: it is after `to`")
    query = LineQuery(job, node, rank, attempt, begin, end, contains)
    with service.store.reading() as session:
        page = read_page(session, query, cursor, limit)
    return {"items": page.items, "total": page.total, "next_cursor": page.cursor}


@router.post(DIAGNOSE_PATH, operation_id="diagnose", dependencies=[Depends(allow(Right.READ))], openapi_extra=TEXT_BODY)
async def diagnose(request: Request, service: ServiceDependency) -> dict[str, Any]:
    """The text of a log in, a diagnosis out; nothing is stored."""
    data = await request.body()
    if not data.strip():
        raise Problem(400, "send the text of a log as the body")
    try:
        diagnosis = await asyncio.wrap_future(service.pool.submit(len(data), diagnose_text, data))
    except (Overloaded, MatcherDied) as error:
        raise Problem(503, str(error), headers={"Retry-After": RETRY_SECONDS}) from None
    return diagnosis_document(diagnosis)
