"""Alertmanager's webhook, version 4 (alertmanager:docs/configuration.md, template/template.go); Grafana sends a superset."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from service.ingest.protocol import ProtocolError

__all__ = ["AlertMessage", "Notification", "epoch_or_none", "parse_notification"]

Label = Annotated[str, Field(max_length=1024)]
Text = Annotated[str, Field(max_length=65_536)]


def nothing_for_null(value: object) -> object:
    """Go's encoder writes an empty map as null."""
    return {} if value is None else value


class AlertMessage(BaseModel):
    """One alert; its own status counts, not the group's."""

    model_config = ConfigDict(extra="ignore")

    status: Literal["firing", "resolved"]
    labels: Annotated[dict[Label, Text], BeforeValidator(nothing_for_null)] = {}
    annotations: Annotated[dict[Label, Text], BeforeValidator(nothing_for_null)] = {}
    startsAt: AwareDatetime
    endsAt: AwareDatetime | None = None
    generatorURL: Text = ""
    fingerprint: Annotated[str, Field(min_length=1, max_length=64)]


class Notification(BaseModel):
    model_config = ConfigDict(extra="ignore")

    version: Literal["4", "1"]
    groupKey: Text = ""
    receiver: Label = ""
    truncatedAlerts: Annotated[int, Field(ge=0)] = 0
    alerts: Annotated[list[AlertMessage], Field(max_length=50_000)]


def epoch_or_none(moment: datetime | None) -> float | None:
    """Seconds since the epoch; None for a time that is not set (`0001-01-01T00:00:00Z`)."""
    return None if moment is None or moment.year < 1970 else moment.timestamp()


def parse_notification(body: bytes) -> Notification:
    """Raises ProtocolError, naming the first field that is wrong."""
    try:
        return Notification.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProtocolError(f"not an Alertmanager webhook of version 4: {where + ': ' if where else ''}{first['msg']}") from None
