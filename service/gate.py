"""What every request passes first: the size of its body, its Host and Origin, and who sends it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlsplit

from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access import LOCAL, Principal
from service.problems import Problem, problem_response
from service.state import Service

__all__ = ["COOKIE", "DOCUMENT_BYTES", "Gate"]

COOKIE = "pitstop_token"
# Everything but the doors for lines takes small documents: parsing them must not hold the event loop.
DOCUMENT_BYTES = 1024 * 1024
OPEN_PATHS = frozenset(
    {"/healthz", "/readyz", "/login", "/static/pitstop.css", "/static/icon.svg", "/static/live.js", "/static/acts.js"}
)


def host_name(host: str) -> str:
    """The name of a Host header without its port."""
    return host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]


def sign_in_at(scope: Scope) -> str:
    """The sign-in page that leads back to the page that was asked for."""
    asked = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
    return "/login" if asked == "/" else f"/login?next={quote(asked, safe='/')}"


def is_loopback(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class Gate:
    """ASGI middleware. `limits`: paths that take more than DOCUMENT_BYTES, with how much; `doors`: those where lines come in.

    Bodies at the doors that are being received or worked on hold at most `max_held_bytes` together; what comes above that is
    answered with 503 before it is read.
    """

    def __init__(self, app: ASGIApp, limits: Mapping[str, int], doors: frozenset[str], max_held_bytes: int) -> None:
        self.app = app
        self.limits = limits
        self.doors = doors
        self.max_held_bytes = max_held_bytes
        self.held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            # What GET would answer; the server sends no body for it.
            scope = {**scope, "method": "GET"}
        limit = self.limits.get(scope["path"], DOCUMENT_BYTES)
        headers = Headers(scope=scope)
        body = BodyAllowance(self, receive, limit, scope["path"] in self.doors)
        try:
            body.announce(headers.get("content-length"))
            if scope["path"] not in self.doors and headers.get("content-encoding", "identity").lower() != "identity":
                raise Problem(415, "bodies are taken as they are here: send it without Content-Encoding")
            secret = bearer(headers)
            scope.setdefault("state", {}).update(secret=secret, principal=await self.identify(scope, headers, secret))
        except Problem as problem:
            body.release()
            if problem.status_code == 401 and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
                await RedirectResponse(sign_in_at(scope), 303)(scope, receive, send)
                return
            await problem_response(problem.status_code, problem.detail, problem.headers)(scope, receive, send)
            return
        try:
            await self.app(scope, body.receive, send)
        finally:
            body.release()

    async def identify(self, scope: Scope, headers: Headers, secret: str | None) -> Principal:
        service: Service = scope["app"].state.pitstop
        settings = service.settings
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in ("GET", "HEAD") and urlsplit(origin).netloc != headers.get("host"):
            raise Problem(403, "a page of another origin may not act here")
        if secret is not None:
            return await self.holder(service, secret)
        if scope["path"] in OPEN_PATHS:
            return Principal("anybody", frozenset())
        client = scope.get("client")
        forwarded = "x-forwarded-for" in headers or "forwarded" in headers
        if settings.require_token or forwarded or not is_loopback(client[0] if client else None):
            raise Problem(
                401, "send Authorization: Bearer TOKEN (pitstop token makes one)", headers={"WWW-Authenticate": "Bearer"}
            )
        if host_name(headers.get("host", "")) not in settings.allowed_hosts:
            raise Problem(403, "without a token only requests to localhost are answered: the Host header names another")
        return LOCAL

    async def holder(self, service: Service, secret: str) -> Principal:
        try:
            principal = await service.callers.holder(secret)
        except SQLAlchemyError:
            raise Problem(503, "the database is busy or gone: send it again", headers={"Retry-After": "1"}) from None
        if principal is None:
            raise Problem(401, "this token is not valid (any more)", headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})
        return principal


def bearer(headers: Headers) -> str | None:
    """The secret of the Authorization header, else of the dashboard's cookie. Raises Problem where the header is none of ours."""
    given = headers.get("authorization")
    if given is not None:
        scheme, _, secret = given.partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise Problem(401, "the Authorization header must be: Bearer TOKEN", headers={"WWW-Authenticate": "Bearer"})
        return secret.strip()
    if "cookie" not in headers:
        return None
    try:
        morsel = SimpleCookie(headers["cookie"]).get(COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel is not None and morsel.value else None


class BodyAllowance:
    """What one request's body may take: its own limit, and, at a door, its part of what all bodies may hold together."""

    def __init__(self, gate: Gate, receive: Receive, limit: int, at_door: bool) -> None:
        self._gate = gate
        self._receive = receive
        self._limit = limit
        self._at_door = at_door
        self._received = 0
        self._held = 0

    def announce(self, content_length: str | None) -> None:
        """Take what the header announces. Raises Problem 413 or 503."""
        if content_length is not None and content_length.isdecimal():
            self._check(int(content_length[:20]))

    async def receive(self) -> Message:
        """The next message of the request. Raises Problem where the body grows past what it may take."""
        message = await self._receive()
        self._received += len(message.get("body", b""))
        self._check(self._received)
        return message

    def release(self) -> None:
        self._gate.held_bytes -= self._held
        self._held = 0

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise Problem(413, f"the body has more than {self._limit} bytes: send smaller pieces")
        if not self._at_door or size <= self._held:
            return
        others = self._gate.held_bytes - self._held
        if others and others + size > self._gate.max_held_bytes:
            raise Problem(503, "more is waiting than Pitstop can hold: send it again in a moment", headers={"Retry-After": "1"})
        self._gate.held_bytes = others + size
        self._held = size
