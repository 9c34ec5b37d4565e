"""The evidence of one incident where it stands: each quoted line among the kept lines around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse

from service.access import Right, allow
from service.api.incidents import IncidentId, incident_or_404
from service.dashboard.rendering import page
from service.kept_evidence import KeptLine, kept_lines
from service.state import ServiceDependency

__all__ = ["Passage", "passages", "router"]

router = APIRouter(include_in_schema=False, dependencies=[Depends(allow(Right.READ))])

AROUND = 6


@dataclass(frozen=True, slots=True)
class Passage:
    """Consecutive kept lines of one stream; `roles`: by line number, for those that are quoted."""

    path: str
    lines: tuple[KeptLine, ...]
    roles: dict[int, str]


def passages(kept: list[KeptLine], evidence: list[dict[str, Any]]) -> list[Passage]:
    """Where the quoted lines stand, root evidence first; quotations near one another share a passage."""
    quoted = {(item["path"], item["line"]): item["role"] for item in evidence if item.get("line") is not None}
    found: list[Passage] = []
    for path in dict.fromkeys(line.path for line in kept):
        lines = [line for line in kept if line.path == path]
        places = [index for index, line in enumerate(lines) if (path, line.number) in quoted]
        start = 0
        for position, place in enumerate(places):
            # The passage goes on where the next quotation is near.
            if position + 1 < len(places) and places[position + 1] - place <= 2 * AROUND:
                continue
            chosen = tuple(lines[max(0, places[start] - AROUND) : place + AROUND + 1])
            roles = {line.number: quoted[path, line.number] for line in chosen if (path, line.number) in quoted}
            found.append(Passage(path, chosen, roles))
            start = position + 1
    return sorted(found, key=lambda passage: "root" not in passage.roles.values())


@router.get("/incidents/{incident_id}/evidence")
def evidence_page(incident_id: IncidentId, service: ServiceDependency) -> HTMLResponse:
    with service.store.reading() as session:
        incident = incident_or_404(session, incident_id)
    evidence = (incident.diagnosis or {}).get("evidence", [])
    found = passages(kept_lines(service.store, incident_id), evidence) if evidence else []
    return page("evidence.html", incident=incident, passages=found)
