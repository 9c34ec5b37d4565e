"""The door for Alertmanager."""

from __future__ import annotations

from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Request

from service.access import PrincipalDependency, Right, allow
from service.alerts import Received, receive_alerts
from service.ingest.alertmanager import Notification, parse_notification
from service.ingest.origins import OriginCounts, write_counts
from service.ingest.protocol import ProtocolError
from service.openapi import raw_body
from service.problems import Problem
from service.state import Service, ServiceDependency

__all__ = ["PATH", "router"]

PATH = "/api/v1/alerts/alertmanager"

BODY = raw_body(application_json=Notification.model_json_schema(ref_template="#/components/schemas/{model}"))

router = APIRouter(tags=["alerts"])


def store_notification(service: Service, body: bytes, origin: str) -> Received:
    notification = parse_notification(body)
    settings, now = service.settings, service.clock()
    with service.store.writing() as session:
        received = receive_alerts(session, notification, now, job_keys=settings.job_keys, hold_seconds=settings.flap_hold_seconds)
        counts = OriginCounts("alertmanager", len(notification.alerts), len(body), last_line_time=now)
        write_counts(session, {origin: counts}, {}, now)
    service.metrics.alerts.labels("firing").inc(received.firing)
    service.metrics.alerts.labels("resolved").inc(received.resolved)
    return received


@router.post(PATH, operation_id="receiveAlerts", dependencies=[Depends(allow(Right.INGEST))], openapi_extra=BODY)
async def receive(request: Request, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Alertmanager's webhook. 2xx: every alert of the notification is stored."""
    body = await request.body()
    try:
        received = await to_thread.run_sync(store_notification, service, body, f"alertmanager/{principal.name}")
    except ProtocolError as error:
        service.metrics.refused.labels("alertmanager", "malformed").inc()
        raise Problem(400, str(error)) from None
    return {"firing": received.firing, "resolved": received.resolved, "incidents": [str(number) for number in received.incidents]}
