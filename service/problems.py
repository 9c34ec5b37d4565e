"""Every error that a client sees: as `application/problem+json` (RFC 9457), or as a page where a browser asked for one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import DataError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import Match

from service.dashboard.rendering import page

__all__ = ["Problem", "conflict", "install_problems", "problem_response"]

log = logging.getLogger("pitstop.service")

# What Pydantic puts before the words of a check of ours.
OWN_WORDS = "Value error, "
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class Problem(HTTPException):
    """Raised where a request cannot be answered as asked: a status, one line for a person, and what machines may want.

    An HTTPException, because FastAPI lets only those through while it reads a body.
    """

    def __init__(self, status: int, detail: str, *, headers: dict[str, str] | None = None, **extensions: Any) -> None:
        super().__init__(status, detail, headers)
        self.extensions = extensions


def conflict(when: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that answers 409 `when` the state of things does not allow it."""
    return {409: {"description": when}}


def problem_response(status: int, detail: str, headers: Mapping[str, str] | None = None, **extensions: Any) -> JSONResponse:
    """A problem document: type about:blank, the status' own title, `detail`, and extension members."""
    document = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **extensions}
    return JSONResponse(
        document, status_code=status, headers=dict(headers) if headers else None, media_type="application/problem+json"
    )


def answer(request: Request, status: int, detail: str, headers: Mapping[str, str] | None = None, **extensions: Any) -> Response:
    """A problem document; a page where a browser asked for one, and not for the API."""
    if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/"):
        shown = page("problem.html", status, title=HTTPStatus(status).phrase, detail=detail)
        shown.headers.update(headers or {})
        return shown
    return problem_response(status, detail, headers, **extensions)


async def on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return answer(request, error.status_code, error.detail, error.headers, **error.extensions)


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        methods = ", ".join(methods_of(request))
        return answer(request, 405, f"this address takes {methods}", {"Allow": methods})
    named = error.status_code != 404 or error.detail != HTTPStatus.NOT_FOUND.phrase
    return answer(request, error.status_code, error.detail if named else "there is nothing at this address", error.headers)


def methods_of(request: Request) -> list[str]:
    """What the address takes, by all its routes: the one that refused knows only its own methods. HEAD is answered as GET is."""
    routes = request.app.routes
    taken = [way for way in METHODS if any(route.matches({**request.scope, "method": way})[0] is Match.FULL for route in routes)]
    # Of the static files, which refuse by themselves, the rest of the path is left.
    taken = taken or ["GET"]
    return ["GET", "HEAD", *taken[1:]] if taken[0] == "GET" else taken


async def on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = [{"loc": place_of(item["loc"]), "msg": item["msg"].removeprefix(OWN_WORDS)} for item in error.errors()[:20]]
    first = found[0]
    # What may be one of several things has an error for each.
    told = dict.fromkeys(item["msg"] for item in found if item["loc"] == first["loc"])
    detail = f"{'.'.join(first['loc'])}: {'; or: '.join(told)}"
    if first["loc"] == ["body"] and not is_json(request.headers.get("content-type", "")):
        detail = "body: send it as JSON, with Content-Type: application/json"
    return answer(request, 422, detail, errors=found)


def place_of(location: Sequence[str | int]) -> list[str]:
    """Where in a request, in the sender's words: without the names that Pydantic gives to branches of a union and to keys."""
    return [str(part) for part in location if "[" not in str(part)]


def is_json(content_type: str) -> bool:
    media = content_type.partition(";")[0].strip().lower()
    return media == "application/json" or (media.startswith("application/") and media.endswith("+json"))


async def on_busy_database(request: Request, error: Exception) -> Response:
    log.error("the database did not answer: %s", error)
    return answer(request, 503, "the database is busy or gone; nothing was stored, send it again", {"Retry-After": "1"})


async def on_collision(request: Request, error: Exception) -> Response:
    log.warning("two requests stored the same at once: %s", str(error).splitlines()[0])
    return answer(request, 503, "another request stored the same at this moment; send it again", {"Retry-After": "1"})


async def on_unstorable(request: Request, error: Exception) -> Response:
    log.warning("a request held what the database does not take: %s", str(error).splitlines()[0])
    return answer(request, 422, "a value is longer than it may be, out of range, or holds characters that cannot be stored")


async def on_failure(request: Request, error: Exception) -> Response:
    log.error("a request failed", exc_info=error)
    return answer(request, 500, "Pitstop failed on this request; its log says how")


def install_problems(app: FastAPI) -> None:
    """Answer every error of `app` as a problem document."""
    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_invalid_request)
    app.add_exception_handler(OperationalError, on_busy_database)
    app.add_exception_handler(PoolTimeout, on_busy_database)
    app.add_exception_handler(IntegrityError, on_collision)
    app.add_exception_handler(DataError, on_unstorable)
    app.add_exception_handler(UnicodeEncodeError, on_unstorable)
    app.add_exception_handler(OverflowError, on_unstorable)
    app.add_exception_handler(Exception, on_failure)
