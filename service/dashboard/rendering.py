"""Templates, and how times, ages and places are written in them. Everything quoted is escaped."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from service.store.incidents import Incident

__all__ = ["CHART_POLICY", "STATIC", "page", "plotly_script"]

ROOM = Path(__file__).parents[1]
STATIC = ROOM / "static"
# Only our own script and style: a quoted log line can do nothing even if escaping failed.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)

# Plotly writes its own style rules while it draws.
CHART_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'").replace(
    "connect-src", "img-src data:; connect-src"
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


def si(value: float) -> str:
    """Three digits with the prefix of the International System: 1.89e16 is 18.9 P."""
    size = abs(value)
    for power, prefix in ((24, "Y"), (21, "Z"), (18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if size >= 10**power:
            return f"{value / 10**power:.3g} {prefix}"
    return f"{value:.3g}"


TEMPLATES = Environment(
    loader=FileSystemLoader(ROOM / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
TEMPLATES.filters |= {"age": age, "iso": iso, "moment": moment, "place": place, "si": si}


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
