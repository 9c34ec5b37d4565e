"""What every request passes first: the size of its body, its Host and Origin, and who sends it."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access import LOCAL, Principal, authenticate
from service.problems import Problem, problem_response
from service.state import Service

__all__ = ["COOKIE", "DOCUMENT_BYTES", "Gate"]

COOKIE = "pitstop_token"
# Everything but the doors for lines takes small documents: parsing them must not hold the event loop.
DOCUMENT_BYTES = 1024 * 1024
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/login", "/static/pitstop.css", "/static/live.js"})
CACHE_SECONDS = 5.0
CACHED_TOKENS = 4096


def host_name(host: str) -> str:
    """The name of a Host header without its port."""
    return host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]


def is_loopback(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class Gate:
    """ASGI middleware. `doors` are the paths that take large bodies, with their limits in bytes."""

    def __init__(self, app: ASGIApp, doors: Mapping[str, int]) -> None:
        self.app = app
        self.doors = doors
        self._known: dict[str, tuple[float, Principal]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.doors.get(scope["path"], DOCUMENT_BYTES)
        headers = Headers(scope=scope)
        try:
            announced = headers.get("content-length", "0")
            if announced.isdecimal() and int(announced[:20]) > limit:
                raise Problem(413, f"the body has more than {limit} bytes: send smaller pieces")
            scope.setdefault("state", {})["principal"] = await self.identify(scope, headers)
        except Problem as problem:
            if problem.status_code == 401 and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
                await RedirectResponse("/login", 303)(scope, receive, send)
                return
            await problem_response(problem.status_code, problem.detail, problem.headers)(scope, receive, send)
            return
        await self.app(scope, limited(receive, limit), send)

    async def identify(self, scope: Scope, headers: Headers) -> Principal:
        service: Service = scope["app"].state.pitstop
        settings = service.settings
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in ("GET", "HEAD") and urlsplit(origin).netloc != headers.get("host"):
            raise Problem(403, "a page of another origin may not act here")
        secret = bearer(headers)
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
        known = self._known.get(secret)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        principal = await anyio.to_thread.run_sync(authenticate, service.store, secret, service.clock())
        if principal is None:
            self._known.pop(secret, None)
            raise Problem(401, "this token is not valid (any more)", headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})
        if len(self._known) >= CACHED_TOKENS:
            self._known.clear()
        self._known[secret] = (time.monotonic() + CACHE_SECONDS, principal)
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


def limited(receive: Receive, limit: int) -> Receive:
    """`receive`, raising Problem 413 where more than `limit` bytes of body come without having been announced."""
    received = 0

    async def counting() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise Problem(413, f"the body has more than {limit} bytes: send smaller pieces")
        return message

    return counting
