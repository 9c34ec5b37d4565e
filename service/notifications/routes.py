"""Which channels hear of what, as the file of PITSTOP_NOTIFY_FILE says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import apprise
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from service.settings import SettingsError

__all__ = ["Routes", "load_routes"]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
FIELDS = frozenset({"audience", "job", "owner", "project", "reason", "severity", "state"})


class ChannelForm(BaseModel):
    """`url`: an Apprise URL; or `url_file`, the file that holds it, so that the secret stands in no configuration."""

    model_config = ConfigDict(extra="forbid")

    url: str | None = None
    url_file: Path | None = None

    @model_validator(mode="after")
    def one_of_both(self) -> ChannelForm:
        if (self.url is None) == (self.url_file is None):
            raise ValueError("give either url or url_file")
        return self


class RouteForm(BaseModel):
    model_config = ConfigDict(extra="forbid")

    match: dict[str, str | list[str]] = {}
    channels: list[Name] = Field(min_length=1)

    @model_validator(mode="after")
    def known_fields(self) -> RouteForm:
        unknown = sorted(set(self.match) - FIELDS)
        if unknown:
            raise ValueError(f"match knows {', '.join(sorted(FIELDS))}, not {unknown[0]!r}")
        return self


class RoutesForm(BaseModel):
    model_config = ConfigDict(extra="forbid")

    quiet_seconds: float = Field(default=3600, ge=0)
    channels: dict[Name, ChannelForm] = Field(min_length=1)
    routes: list[RouteForm] = Field(min_length=1)

    @model_validator(mode="after")
    def known_channels(self) -> RoutesForm:
        for route in self.routes:
            for name in route.channels:
                if name not in self.channels:
                    raise ValueError(f"a route names the channel {name!r}, which is not among channels")
        return self


@dataclass(frozen=True, slots=True)
class Route:
    """Every field of `match` must have one of its values; an empty one matches everything."""

    match: Mapping[str, frozenset[str]]
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Routes:
    """`channels`: Apprise URLs by name. `quiet_seconds`: how long the same state of the same fault is not told again."""

    channels: Mapping[str, str]
    routes: tuple[Route, ...]
    quiet_seconds: float

    def channels_for(self, facts: Mapping[str, str | None]) -> tuple[str, ...]:
        """The channels of all routes that match, each once, in the file's order."""
        found = [
            name
            for route in self.routes
            if all(facts.get(field) in values for field, values in route.match.items())
            for name in route.channels
        ]
        return tuple(dict.fromkeys(found))


def load_routes(path: Path | None) -> Routes | None:
    """The routes in a YAML (or JSON) file. Raises SettingsError with one line that names the file and what is wrong."""
    if path is None:
        return None
    try:
        form = RoutesForm.model_validate(yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader))
        channels = {name: url_of(name, channel) for name, channel in form.channels.items()}
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"PITSTOP_NOTIFY_FILE: {path}: {at + ': ' if at else ''}{first['msg']}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"PITSTOP_NOTIFY_FILE: {path}: {' '.join(str(error).split())}") from None
    routes = tuple(
        Route(
            {name: frozenset([values] if isinstance(values, str) else values) for name, values in route.match.items()},
            tuple(route.channels),
        )
        for route in form.routes
    )
    return Routes(channels, routes, form.quiet_seconds)


def url_of(name: str, channel: ChannelForm) -> str:
    """The channel's URL. Raises ValueError, without the URL itself: it holds the channel's secret."""
    url = channel.url if channel.url_file is None else channel.url_file.read_text(encoding="utf-8").strip()
    if not url or apprise.Apprise.instantiate(url, suppress_exceptions=True) is None:
        raise ValueError(f"the channel {name!r} has no URL that Apprise knows")
    return url
