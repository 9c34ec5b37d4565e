"""Who sends what, how far behind it is, and what went wrong with it: no data is not healthy."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from sqlalchemy import func, select

from service.access import Right, allow
from service.api.documents import listing, offset_of
from service.state import ServiceDependency
from service.store.database import timestamp
from service.store.logs import Origin

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/collectors", tags=["collectors"])


@router.get("", operation_id="listCollectors", dependencies=[Depends(allow(Right.READ))])
def list_collectors(
    service: ServiceDependency, limit: Annotated[int, Query(ge=1, le=500)] = 100, cursor: str | None = None
) -> dict[str, Any]:
    """Every source, the one silent for longest first."""
    offset, now = offset_of(cursor), service.clock()
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(Origin)) or 0
        rows = session.scalars(select(Origin).order_by(Origin.last_seen, Origin.name).offset(offset).limit(limit)).all()

    def document(origin: Origin) -> dict[str, Any]:
        return {
            "name": origin.name,
            "protocol": origin.protocol,
            "first_seen": timestamp(origin.first_seen),
            "last_seen": timestamp(origin.last_seen),
            "silent_seconds": round(max(0.0, now - origin.last_seen), 3),
            "lag_seconds": origin.lag_seconds,
            "lines_per_second": origin.report.get("lines_per_second", 0.0),
            "lines": origin.lines,
            "bytes": origin.bytes,
            "dropped": origin.dropped,
            "errors": origin.errors,
            "last_error": origin.last_error,
        }

    return listing(rows, document, total, offset, limit)
