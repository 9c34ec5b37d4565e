"""The short way of what every agent sends every second: where it says nothing new it is answered before the routes are looked
through, which takes several times as long as the answer. All else, and whatever is wrong, goes on to the routes, body and all.

Shorter still is the way of a request whose head was seen before, byte for byte and from the same address: it means the same, so
that service/known_heads.py answers it without parsing it, as long as its token is known to be valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access import LOCAL, Principal
from service.state import Service

__all__ = ["Asked", "ShortAnswer", "ShortWay", "ShortWays"]

# Called on the event loop with the body. None: the route of this path shall answer.
ShortAnswer = Callable[[Service, Principal, str, bytes], dict[str, Any] | None]

PREFIX = "/api/v1/"
# Of the length of a body.
MOST_DIGITS = 5
MOST_HEADS = 20_000
LONGEST_HEAD = 4096
# What a head may say beside these, as that its body comes in pieces, is for the server to see to.
PLAIN = b"accept accept-encoding authorization connection content-length content-type host user-agent".split()
FORWARDED = b"forwarded via x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto x-real-ip".split()
KNOWN_HEADERS = frozenset((*PLAIN, *FORWARDED))
LENGTHS = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a head asks for: an answer about `name`, for the holder of `secret` (None: LOCAL)."""

    answer: ShortAnswer
    name: str
    secret: str | None

    def answered(self, service: Service, body: bytes) -> dict[str, Any] | None:
        """None where the server has to look at it."""
        principal = LOCAL if self.secret is None else service.callers.known(self.secret)
        return None if principal is None else self.answer(service, principal, self.name, body)


def without_length(head: bytes) -> tuple[bytes, bytes]:
    """A head without the length that it announces, which changes with every digit of the body, and that length, if any."""
    for name in LENGTHS:
        before, found, after = head.partition(name)
        if found:
            length, end, rest = after.partition(b"\r\n")
            return before + end + rest, length
    return head, b""


class ShortWays:
    """`answers`: by the collection and the act of a path PREFIX/collection/NAME/act."""

    def __init__(self, answers: Mapping[tuple[str, str], ShortAnswer]) -> None:
        self._answers = answers
        # By the address that they came from, and their bytes without the length.
        self._heads: dict[tuple[str, bytes], Asked] = {}

    def known(self, address: str, head: bytes) -> tuple[Asked, int] | None:
        """What `head` asks for, and the length of its body; None where it was not seen before."""
        same, length = without_length(head)
        asked = self._heads.get((address, same))
        return (asked, int(length)) if asked is not None and length.isdigit() and len(length) <= MOST_DIGITS else None

    def asked(self, scope: Scope) -> Asked | None:
        """What is asked for, where a short way leads there; its head is known from then on. The gate has let it in."""
        collection, _, rest = scope["path"].removeprefix(PREFIX).partition("/")
        name, _, act = rest.rpartition("/")
        answer = self._answers.get((collection, act))
        if answer is None or "/" in name or scope["method"] != "POST":
            return None
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        is_json = headers.get(b"content-type", b"").startswith(b"application/json")
        if not (is_json and length.isdigit() and len(length) <= MOST_DIGITS):
            return None
        asked = Asked(answer, name, scope["state"]["secret"])
        head, client = scope["state"].get("head"), scope.get("client")
        if head and client and len(head) <= LONGEST_HEAD and is_plain(scope, head, headers):
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            self._heads[client[0], without_length(head)[0]] = asked
        return asked


def is_plain(scope: Scope, head: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """Whether `head` is these headers, a line each, and asks for no more than an answer, after which the connection stays."""
    lines = head.count(b"\n") == head.count(b"\r\n") == len(headers) == len(scope["headers"])
    stays = scope["http_version"] == "1.1" and headers.get(b"connection", b"keep-alive").lower() == b"keep-alive"
    return lines and stays and headers.keys() <= KNOWN_HEADERS


class ShortWay:
    """ASGI middleware, behind service/gate.py."""

    def __init__(self, app: ASGIApp, ways: ShortWays) -> None:
        self.app = app
        self.ways = ways

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = self.ways.asked(scope) if scope["type"] == "http" else None
        if asked is None:
            await self.app(scope, receive, send)
            return
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        document = None
        if messages[-1]["type"] == "http.request":
            body = b"".join(message.get("body", b"") for message in messages)
            document = asked.answer(scope["app"].state.pitstop, scope["state"]["principal"], asked.name, body)
        if document is not None:
            await JSONResponse(document)(scope, receive, send)
        else:
            await self.app(scope, again(messages, receive), send)


def again(messages: list[Message], receive: Receive) -> Receive:
    """`receive`, with what was received before."""
    waiting = iter(messages)

    async def receive_again() -> Message:
        return next(waiting, None) or await receive()

    return receive_again
