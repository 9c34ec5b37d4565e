"""Silences, in Alertmanager's form."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from sqlalchemy import func, select

from rules.redaction import redact_text
from service.access import PrincipalDependency, Right, allow
from service.api.documents import listing, offset_of
from service.problems import Problem
from service.silences import reapply_silences, usable_pattern
from service.state import ServiceDependency
from service.store.access import audit
from service.store.database import timestamp
from service.store.events import publish_event
from service.store.incidents import Silence

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/silences", tags=["silences"])

LONGEST_SECONDS = 366 * 86400.0


class Matcher(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=255)]
    value: Annotated[str, Field(max_length=1024)]
    isRegex: bool = False
    isEqual: bool = True


class NewSilence(BaseModel):
    model_config = ConfigDict(extra="ignore")

    matchers: Annotated[list[Matcher], Field(min_length=1, max_length=32)]
    startsAt: AwareDatetime | None = None
    endsAt: AwareDatetime
    comment: Annotated[str, Field(min_length=1, max_length=4096)]


def document(silence: Silence) -> dict[str, Any]:
    return {
        "id": str(silence.id),
        "matchers": silence.matchers,
        "startsAt": timestamp(silence.starts_at),
        "endsAt": timestamp(silence.ends_at),
        "createdBy": silence.created_by,
        "comment": silence.comment,
    }


def seconds(moment: datetime) -> float:
    return moment.timestamp() if moment.year >= 1970 else 0.0


@router.post("", status_code=201, operation_id="createSilence", dependencies=[Depends(allow(Right.OPERATE))])
def create_silence(body: NewSilence, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Silence what matches, from now (or `startsAt`) until `endsAt`."""
    now = service.clock()
    starts_at = now if body.startsAt is None else max(now, seconds(body.startsAt))
    ends_at = seconds(body.endsAt)
    if not starts_at < ends_at <= now + LONGEST_SECONDS:
        raise Problem(422, "endsAt must lie after the start, within a year")
    broken = next((matcher for matcher in body.matchers if matcher.isRegex and not usable_pattern(matcher.value)), None)
    if broken is not None:
        raise Problem(422, f"the matcher of {broken.name!r} is not a pattern that RE2 takes")
    comment = redact_text(body.comment)
    with service.store.writing() as session:
        silence = Silence(
            matchers=[matcher.model_dump() for matcher in body.matchers],
            starts_at=starts_at,
            ends_at=ends_at,
            created_by=principal.name,
            comment=comment,
            created_at=now,
        )
        session.add(silence)
        session.flush()
        reapply_silences(session, now)
        audit(session, principal.name, "silence.create", str(silence.id), comment, {"matchers": silence.matchers}, now)
        publish_event(session, "silence.created", str(silence.id), {"by": principal.name}, now)
        return document(silence)


@router.get("", operation_id="listSilences", dependencies=[Depends(allow(Right.READ))])
def list_silences(
    service: ServiceDependency,
    ended: bool = False,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Silences that hold or will hold, the first to end first; `ended`: those that are over."""
    offset, now = offset_of(cursor), service.clock()
    chosen = select(Silence).where(Silence.ends_at <= now if ended else Silence.ends_at > now)
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(chosen.subquery())) or 0
        rows = session.scalars(chosen.order_by(Silence.ends_at, Silence.id).offset(offset).limit(limit)).all()
    return listing(rows, document, total, offset, limit)


@router.delete("/{silence_id}", operation_id="endSilence", dependencies=[Depends(allow(Right.OPERATE))])
def end_silence(
    silence_id: Annotated[int, Path(ge=1, le=2**62)], service: ServiceDependency, principal: PrincipalDependency
) -> dict[str, Any]:
    """End a silence now; it stays in the list of those that are over."""
    now = service.clock()
    with service.store.writing() as session:
        silence = session.get(Silence, silence_id)
        if silence is None:
            raise Problem(404, f"there is no silence {silence_id}")
        if silence.ends_at > now:
            silence.ends_at = now
            session.flush()
            reapply_silences(session, now)
            audit(session, principal.name, "silence.end", str(silence_id), "ended by hand", at=now)
            publish_event(session, "silence.ended", str(silence_id), {"by": principal.name}, now)
        return document(silence)
