"""Whether the service lives, whether it can serve, and its metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import SQLAlchemyError

from service.access import Right, allow
from service.migration import pending_revisions
from service.state import Service, ServiceDependency

__all__ = ["router"]

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="healthz")
def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "alive"}


def database_check(service: Service) -> str:
    try:
        pending = pending_revisions(service.store)
    except SQLAlchemyError as error:
        return f"does not answer: {str(error).splitlines()[0]}"
    return f"waits for `pitstop migrate`: {', '.join(pending)}" if pending else "ok"


@router.get(
    "/readyz", operation_id="readyz", responses={503: {"description": "Something is wrong.", "content": {"application/json": {}}}}
)
def readyz(service: ServiceDependency) -> JSONResponse:
    """Each part that serving needs, by name: `ok`, or what is wrong with it. 503 where anything is wrong."""
    checks = {"database": database_check(service)} | {name: check() for name, check in service.checks.items()}
    ready = all(state == "ok" for state in checks.values())
    document: dict[str, Any] = {"status": "ready" if ready else "not ready", "checks": checks}
    document |= {name: report() for name, report in service.reports.items()}
    return JSONResponse(document, status_code=200 if ready else 503)


@router.get("/metrics", operation_id="metrics", dependencies=[Depends(allow(Right.READ))], response_class=Response)
def metrics(service: ServiceDependency) -> Response:
    """Prometheus' text format."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)
