"""Templates, and how times, ages, places and log text are written in them. Everything quoted is escaped."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from service.store.incidents import Incident

__all__ = ["CHART_POLICY", "STATIC", "page", "plotly_script"]

ROOM = Path(__file__).parents[1]
STATIC = ROOM / "static"
# Only our own script and style: a quoted log line can do nothing even if escaping failed.
POLICY = (
    "default-src 'none'; img-src 'self'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

# Plotly writes its own style rules while it draws.
CHART_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'").replace(
    "img-src 'self'", "img-src 'self' data:"
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


def iso(seconds: float) -> str:
    """The time for machines, and for the script that shows it as local time."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def place(incident: Incident) -> str:
    """Node, GPU, rank and link, as far as they are known."""
    parts = (("node", incident.node), ("GPU", incident.gpu), ("rank", incident.rank), ("link", incident.link))
    return ", ".join(f"{name} {value}" for name, value in parts if value) or "-"


# Of a line's text this much is shown; the API has all of it.
CLIPPED = 2_000
# What would colour, move or reorder the text around it: control characters, and marks of writing direction.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def named(found: re.Match[str]) -> str:
    """A hidden character, written as its number."""
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0xA0 else f"[U+{code:04X}]"


def visible(value: Any) -> Any:
    """What a template puts out, with no character hidden: every text that comes from outside is shown as text."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return HIDDEN.sub(named, value)
    return value


def clipped(text: str) -> str:
    """The beginning of a long line, and how much more there is."""
    return text if len(text) <= CLIPPED else f"{text[:CLIPPED]} [... {len(text) - CLIPPED:,} characters more]"


def si(value: float) -> str:
    """Three digits with the prefix of the International System: 1.89e16 is 18.9 P."""
    size = abs(value)
    for power, prefix in ((24, "Y"), (21, "Z"), (18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if size >= 10**power:
            return f"{value / 10**power:.3g} {prefix}"
    return f"{value:.3g}"


TEMPLATES = Environment(
    loader=FileSystemLoader(ROOM / "templates"),
    autoescape=True,
    finalize=visible,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {"age": age, "clipped": clipped, "iso": iso, "moment": moment, "place": place, "si": si}


def page(template: str, status: int = 200, *, policy: str = POLICY, **values: Any) -> HTMLResponse:
    """Render a page with the headers that every page has."""
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    return HTMLResponse(TEMPLATES.get_template(template).render(**values), status, headers)


def plotly_script() -> FileResponse:
    """Plotly's own script as its wheel ships it; importing the package itself would take a second."""
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise RuntimeError("plotly is not installed: install pitstop[service]")
    return FileResponse(
        Path(found.origin).parent / "package_data" / "plotly.min.js",
        media_type="text/javascript",
        headers={"Cache-Control": "max-age=86400"},
    )
