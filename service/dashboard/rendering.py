"""Templates, and how times, ages and places are written in them. Everything quoted is escaped."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from service.store.incidents import Incident

__all__ = ["STATIC", "page"]

ROOM = Path(__file__).parents[1]
STATIC = ROOM / "static"
# Only our own script and style: a quoted log line can do nothing even if escaping failed.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


def age(seconds: float) -> str:
    """A span of time in its largest unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def moment(seconds: float) -> str:
    """Date and time in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def place(incident: Incident) -> str:
    """Node, GPU, rank and link, as far as they are known."""
    parts = (("node", incident.node), ("GPU", incident.gpu), ("rank", incident.rank), ("link", incident.link))
    return ", ".join(f"{name} {value}" for name, value in parts if value) or "-"


TEMPLATES = Environment(
    loader=FileSystemLoader(ROOM / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
TEMPLATES.filters |= {"age": age, "moment": moment, "place": place}


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a page with the headers that every page has."""
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    return HTMLResponse(TEMPLATES.get_template(template).render(**values), status, headers)
