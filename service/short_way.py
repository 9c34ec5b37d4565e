"""The short way of what every agent sends every second: where it says nothing new it is answered before the routes are looked
through, which takes several times as long as the answer. All else, and whatever is wrong, goes on to the routes, body and all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access import Principal
from service.state import Service

__all__ = ["ShortAnswer", "ShortWay"]

# Called on the event loop with the body. None: the route of this path shall answer.
ShortAnswer = Callable[[Service, Principal, str, bytes], dict[str, Any] | None]

PREFIX = "/api/v1/"
MOST_BYTES = 64 * 1024


class ShortWay:
    """ASGI middleware, behind service/gate.py. `answers`: by the collection and the act of a path PREFIX/collection/NAME/act."""

    def __init__(self, app: ASGIApp, answers: Mapping[tuple[str, str], ShortAnswer]) -> None:
        self.app = app
        self.answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        collection, _, rest = scope["path"].removeprefix(PREFIX).partition("/") if scope["type"] == "http" else ("", "", "")
        name, _, act = rest.rpartition("/")
        answer = self.answers.get((collection, act))
        if answer is None or "/" in name or not is_small_json(scope):
            await self.app(scope, receive, send)
            return
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        document = None
        if messages[-1]["type"] == "http.request":
            body = b"".join(message.get("body", b"") for message in messages)
            document = answer(scope["app"].state.pitstop, scope["state"]["principal"], name, body)
        if document is not None:
            await JSONResponse(document)(scope, receive, send)
        else:
            await self.app(scope, again(messages, receive), send)


def is_small_json(scope: Scope) -> bool:
    """Whether a document is posted whose length is announced: the gate has already seen that it may be as long."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"")
    posted = scope["method"] == "POST" and headers.get(b"content-type", b"").startswith(b"application/json")
    return posted and length.isdigit() and int(length[:20]) <= MOST_BYTES


def again(messages: list[Message], receive: Receive) -> Receive:
    """`receive`, with what was received before."""
    waiting = iter(messages)

    async def receive_again() -> Message:
        return next(waiting, None) or await receive()

    return receive_again
