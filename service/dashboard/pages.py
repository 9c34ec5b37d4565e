"""The overview, the page of one incident, and signing in and out."""

from __future__ import annotations

import re
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from rules.signal import Role
from rules.taxonomy import NONE, Severity, load_taxonomy
from service.access import Principal, PrincipalDependency, Right, allow, authenticate
from service.api.incidents import SHOWN_ALERTS, IncidentId, incident_or_404
from service.dashboard.rendering import page
from service.fleet import breaker_limits
from service.gate import COOKIE
from service.localization_documents import incident_localization
from service.situations import frozen
from service.state import Service, ServiceDependency
from service.store.access import audit
from service.store.fleet import NodeReturn
from service.store.incidents import Alert, Failure, Incident, count_timeline, page_of_incidents, timeline
from service.store.jobs import Node, count_jobs
from service.store.logs import Origin
from service.store.recoveries import Notification, RecoveryRow
from service.timeline import IncidentState

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

PAGE = 50
SIMILAR = 8
ROLES = [role.value for role in (Role.ROOT, Role.CASCADE, Role.TEARDOWN, Role.CONTEXT)]
COOKIE_SECONDS = 12 * 3600


@router.get("/", dependencies=[Depends(allow(Right.READ))])
def overview(
    service: ServiceDependency,
    severity: Severity | None = None,
    state: IncidentState | None = None,
    all: bool = False,
    contains: Annotated[str | None, Query(max_length=255)] = None,
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
) -> HTMLResponse:
    """Open incidents by severity, jobs, nodes and sources; then the incidents themselves."""
    now = service.clock()
    chosen = select(Incident).where(Incident.merged_into.is_(None))
    if not all:
        chosen = chosen.where(Incident.open_key.is_not(None))
    if severity:
        chosen = chosen.where(Incident.severity == severity.value)
    if state:
        chosen = chosen.where(Incident.state == state.value)
    if contains:
        chosen = chosen.where(
            or_(
                Incident.job.contains(contains, autoescape=True),
                Incident.node.contains(contains, autoescape=True),
                Incident.reason.contains(contains, autoescape=True),
            )
        )
    with service.store.reading() as session:
        why_frozen = frozen(session)
        total, incidents = page_of_incidents(session, chosen, offset, PAGE)
        counted = session.execute(
            select(Incident.severity, func.count()).where(Incident.open_key.is_not(None)).group_by(Incident.severity)
        )
        found = {row[0]: row[1] for row in counted}
        jobs = count_jobs(session)
        waiting = (
            session.scalar(
                select(func.count()).select_from(Incident).where(Incident.state == IncidentState.WAITING_FOR_APPROVAL.value)
            )
            or 0
        )
        silent = session.scalar(select(func.count()).select_from(Node).where(Node.lease_until < now)) or 0
        heard = (session.scalar(select(func.count()).select_from(Node)) or 0) - silent
        out = session.scalar(select(func.count()).select_from(NodeReturn).where(NodeReturn.over.is_(False))) or 0
        limit = breaker_limits(session).overall(heard + silent)
        origins = session.scalars(select(Origin).order_by(Origin.last_seen.desc()).limit(PAGE)).all()
    query: dict[str, Any] = {
        name: value
        for name, value in (("severity", severity), ("state", state), ("all", "1" if all else None), ("contains", contains))
        if value
    }
    return page(
        "overview.html",
        now=now,
        incidents=incidents,
        total=total,
        next_offset=offset + PAGE if offset + PAGE < total else None,
        severities={level.value: found.get(level.value, 0) for level in Severity},
        jobs=jobs,
        nodes={"heard": heard, "silent": silent, "out": out, "limit": limit},
        waiting=waiting,
        origins=origins,
        newest_line=max((origin.last_seen for origin in origins), default=now),
        chosen={"severity": severity, "state": state, "all": all, "contains": contains, "query": query},
        frozen=why_frozen,
    )


@router.get("/incidents/{incident_id}", dependencies=[Depends(allow(Right.READ))])
def incident_page(incident_id: IncidentId, service: ServiceDependency) -> HTMLResponse:
    """Verdict, what waits for an operator, timeline, evidence, and what was like it."""
    with service.store.reading() as session:
        incident = incident_or_404(session, incident_id)
        entries, entry_count = timeline(session, incident_id), count_timeline(session, incident_id)
        alerts = session.scalars(
            select(Alert).where(Alert.incident_id == incident_id).order_by(Alert.id.desc()).limit(SHOWN_ALERTS)
        ).all()
        notifications = session.scalars(
            select(Notification).where(Notification.incident_id == incident_id).order_by(Notification.id)
        ).all()
        similar = session.scalars(
            select(Incident)
            .where(Incident.reason == incident.reason, Incident.id != incident_id, Incident.merged_into.is_(None))
            .order_by((Incident.node == incident.node).desc(), (Incident.job == incident.job).desc(), Incident.id.desc())
            .limit(SIMILAR)
        ).all()
        waiting = waiting_action(service, session, incident_id)
        failures = session.scalars(select(Failure).where(Failure.incident_id == incident_id).order_by(Failure.id)).all()
        localization = incident_localization(session, incident_id)
    return page(
        "incident.html",
        localization=localization,
        evidence=by_role((incident.diagnosis or {}).get("evidence", [])),
        incident=incident,
        entries=entries,
        earlier=entry_count - len(entries),
        alerts=alerts,
        failures=failures,
        notifications=notifications,
        similar=similar,
        waiting=waiting,
        now=service.clock(),
        reasons=sorted(name for name in load_taxonomy().reasons if name != NONE),
        silence=silence_of(incident),
    )


def by_role(evidence: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Root evidence first, what only followed from it after it."""
    return sorted(evidence, key=lambda item: ROLES.index(item["role"]))


def silence_of(incident: Incident) -> list[dict[str, str]]:
    """The matchers that the page offers: this reason on this job and node, as far as they are known."""
    known = (("reason", incident.reason), ("job", incident.job), ("node", incident.node))
    return [{"name": name, "value": value} for name, value in known if value]


def waiting_action(service: Service, session: Session, incident_id: int) -> dict[str, str] | None:
    """What waits for a person about this incident, and why it would be done."""
    rows = select(RecoveryRow).where(RecoveryRow.incident_id == incident_id, RecoveryRow.over.is_(False))
    for row in session.scalars(rows.order_by(RecoveryRow.id.desc())):
        state = service.recoveries.state_of(row)
        if state.awaits_approval and state.decision is not None:
            return {"action": state.decision.action.value, "why": state.decision.sentence}
    return None


def place_in(address: str) -> str:
    """Where a sign-in leads: a page of this service, whatever the address said."""
    return address if re.fullmatch(r"/(?![/\\])[^\x00-\x20\\]*", address) else "/"


@router.get("/login")
def login_page(next: Annotated[str, Query(max_length=2048)] = "/") -> HTMLResponse:
    """Where a browser brings its token."""
    return page("login.html", wrong=False, next=place_in(next))


@router.post("/login")
async def login(
    request: Request,
    service: ServiceDependency,
    token: Annotated[str, Form(max_length=512)],
    next: Annotated[str, Form(max_length=2048)] = "/",
) -> Response:
    """Keep a valid token in a cookie that no script can read."""
    principal = await to_thread.run_sync(sign_in, service, token.strip())
    if principal is None:
        return page("login.html", 403, wrong=True, next=place_in(next))
    answer = RedirectResponse(place_in(next), 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, token.strip(), max_age=COOKIE_SECONDS, httponly=True, samesite="strict", secure=secure)
    return answer


def sign_in(service: Service, secret: str) -> Principal | None:
    """Whose token it is; the sign-in is audited."""
    now = service.clock()
    principal = authenticate(service.store, secret, now)
    if principal is not None:
        with service.store.writing() as session:
            audit(session, principal.name, "session.begin", principal.name, "signed in to the dashboard", at=now)
    return principal


@router.post("/logout")
def logout(service: ServiceDependency, principal: PrincipalDependency) -> Response:
    """Forget the token in this browser; it stays valid elsewhere."""
    with service.store.writing() as session:
        audit(session, principal.name, "session.end", principal.name, "signed out of the dashboard", at=service.clock())
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE)
    return answer
