"""A head that was seen before is answered without being parsed, and never means anything else than it did to the server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access import LOCAL, RIGHTS, Principal, Role
from service.heads import BoundedHeads
from service.known_heads import KnownHeads
from service.server import listen
from service.short_way import ShortWay, ShortWays

AGENT = Principal("agent", RIGHTS[Role.NODE], Role.NODE)
HEAD = (
    b"POST /api/v1/nodes/%b/lease HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d%b\r\n\r\n"
)


def request(body: bytes = b'"tick"', node: bytes = b"n1", more: bytes = b"") -> bytes:
    return HEAD % (node, len(body), b"".join(b"\r\n" + line for line in more.splitlines())) + body


@dataclass
class Site:
    """An application behind the protocol: what was parsed for it and said to it, and whose secrets are valid just now."""

    address: tuple[str, int] = ("", 0)
    parsed: int = 0
    said: list[tuple[str, str, bytes]] = field(default_factory=list)
    valid: dict[str, Principal] = field(default_factory=dict)
    # By the address that they come from: the server's end, and how many bytes it has dealt with.
    connections: dict[tuple[str, int], tuple[BoundedHeads, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ways = ShortWays({("nodes", "lease"): self.answer})

    def answer(self, _: Any, principal: Principal, name: str, body: bytes) -> dict[str, Any] | None:
        """Of the short way: news are for the route."""
        self.said.append((principal.name, name, body))
        return None if b"news" in body else {"short": name}

    def send(self, *parts: bytes, source: str = "127.0.0.1") -> bytes:
        """All that is answered to `parts`, each of which is dealt with before the next one arrives, and to a last request."""
        answered, sent = b"", 0
        with socket.create_connection(self.address, timeout=30, source_address=(source, 0)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The server may have ended the connection by then, as it was asked to.
            with suppress(ConnectionError):
                for part in (*parts, b"GET /end HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"):
                    connection.sendall(part)
                    sent += len(part)
                    self.wait(connection.getsockname(), sent)
                while received := connection.recv(65536):
                    answered += received
        return answered

    def wait(self, source: tuple[str, int], sent: int) -> None:
        """Until the server has dealt with so much from `source`: each whole request of it is answered."""
        deadline = time.monotonic() + 30
        while sent and time.monotonic() < deadline:
            connection, heard = self.connections.get(source, (None, 0))
            if connection is not None:
                cycle = connection.cycle
                idle = heard >= sent and (cycle is None or cycle.response_complete or cycle.more_body)
                if idle or connection.transport.is_closing():
                    return
            time.sleep(0.0002)
        assert not sent, f"{sent} bytes were not dealt with"

    def parsed_by(self, *parts: bytes, source: str = "127.0.0.1") -> int:
        """How many of the requests in `parts` were parsed."""
        before = self.parsed
        self.send(*parts, source=source)
        return self.parsed - before


class Door:
    """What service/gate.py does for the short way."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self.app, self.site = app, site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.site.parsed += scope["path"] != "/end"
            secret = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ") or None
            principal = LOCAL if secret is None else self.site.valid.get(secret, Principal("nobody", frozenset()))
            scope.setdefault("state", {}).update(secret=secret, principal=principal)
        await self.app(scope, receive, send)


def application(site: Site) -> FastAPI:
    app = FastAPI()
    app.state.pitstop = SimpleNamespace(callers=SimpleNamespace(known=site.valid.get))
    app.state.short_ways = site.ways
    app.add_middleware(ShortWay, ways=site.ways)
    app.add_middleware(Door, site=site)

    @app.post("/api/v1/nodes/{node}/lease")
    async def route(node: str, request: Request) -> dict[str, str]:
        return {"route": node, "body": (await request.body()).decode()}

    @app.get("/end")
    async def end() -> str:
        return "end"

    return app


def observed(http: type[BoundedHeads], site: Site) -> type[BoundedHeads]:
    """The protocol, which tells `site` how far it has come."""

    class Observed(http):  # type: ignore[misc, valid-type]
        heard = 0

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.heard += len(data)
            site.connections[self.client] = self, self.heard

    return Observed


def served(site: Site, http: type[BoundedHeads]) -> Iterator[Site]:
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(application(site), http=observed(http, site), lifespan="off", log_level="critical", date_header=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    site.address = listener.getsockname()
    yield site
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Site, Site]]:
    """The same application behind this protocol, and behind one that parses every request."""
    for known in served(Site(), KnownHeads):
        for parsing in served(Site(), BoundedHeads):
            yield known, parsing


@pytest.fixture
def site(both: tuple[Site, Site]) -> Site:
    """That has seen nothing yet."""
    site, _ = both
    site.ways._heads.clear()
    site.said.clear()
    return site


def test_a_head_that_was_seen_is_not_parsed_again_however_long_its_body_and_in_what_pieces_it_comes(site: Site) -> None:
    assert site.parsed_by(request()) == 1
    assert site.parsed_by(*[request()] * 5) == 0
    assert site.parsed_by(request(b'"a longer one"')) == 0
    head, body = request(b'"in pieces"').split(b"\r\n\r\n")
    assert site.parsed_by(head + b"\r\n\r\n", body[:4], body[4:]) == 0
    assert site.said[-1] == ("local", "n1", b'"in pieces"')


@pytest.mark.parametrize(
    "other",
    [
        request(node=b"n2"),
        request(more=b"Authorization: Bearer other"),
        request(more=b"X-Forwarded-For: 10.0.0.1"),
        request(more=b"Content-Encoding: gzip"),
        request(more=b"Origin: http://elsewhere"),
        request().replace(b"POST", b"PUT"),
        request().replace(b"HTTP/1.1", b"HTTP/1.0"),
        request().replace(b"Content-Length", b"Content-length"),
        request() * 2,
    ],
)
def test_a_head_that_says_anything_else_is_parsed(site: Site, other: bytes) -> None:
    site.send(request(), request())
    assert site.parsed_by(other) >= 1


def test_the_same_head_from_another_address_is_parsed(site: Site) -> None:
    site.send(request(), request())
    assert site.parsed_by(request(), source="127.0.0.2") == 1


@pytest.mark.parametrize(
    "more", [b"Connection: close", b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Content-Length: 6", b"X-Other: 1"]
)
def test_a_head_that_asks_for_more_than_an_answer_never_becomes_known(site: Site, more: bytes) -> None:
    site.send(request(more=more))
    answered = len(site.said)
    parsed = site.parsed_by(request(more=more))
    assert len(site.said) - answered <= parsed


def test_a_token_that_is_no_longer_known_to_be_valid_is_looked_at_by_the_gate(site: Site) -> None:
    site.valid["secret"] = AGENT
    mine = request(more=b"Authorization: Bearer secret")
    site.send(mine, mine)
    assert [name for name, *_ in site.said] == ["agent", "agent"] and site.parsed_by(mine) == 0
    del site.valid["secret"]
    assert site.parsed_by(mine) == 1 and site.said[-1][0] == "nobody"


def test_what_the_short_way_does_not_answer_reaches_the_route_whole(site: Site) -> None:
    site.send(request(), request())
    head, body = request(b'"news of the day"').split(b"\r\n\r\n")
    assert b'{"route":"n1","body":"\\"news of the day\\""}' in site.send(head + b"\r\n\r\n" + body[:3], body[3:])


def test_a_connection_that_repeats_itself_is_heard_out_each_time(site: Site) -> None:
    tick, news, other = request(), request(b'"news"'), request(node=b"n2")
    site.send(tick, other)
    sent = (tick, tick, news, tick, tick, other, tick[:-3], tick[-3:], tick, tick + other, tick)
    short, route = b'{"short":"n1"}', b'{"route":"n1","body":"\\"news\\""}'
    expected = [short, short, route, short, short, b'{"short":"n2"}', short, short, short, b'{"short":"n2"}', short]
    assert bodies(site.send(*sent))[1::2][: len(expected)] == expected


def test_a_token_that_ends_between_two_requests_of_a_connection_ends_there(site: Site) -> None:
    site.valid["secret"] = AGENT
    mine = request(more=b"Authorization: Bearer secret")
    site.send(mine)
    with socket.create_connection(site.address, timeout=30) as connection:
        for valid in (True, True, True, False):
            if not valid:
                del site.valid["secret"]
            connection.sendall(mine)
            connection.recv(65536)
    assert [name for name, *_ in site.said] == ["agent"] * 4 + ["nobody"]


def test_a_head_whose_lines_end_in_another_way_never_becomes_known(site: Site) -> None:
    odd = request().replace(b"\r\nContent-Type", b"\nContent-Type")
    for _ in range(3):
        answered = len(site.said)
        assert site.parsed_by(odd) == len(site.said) - answered


SENT = st.lists(
    st.builds(
        request,
        st.sampled_from([b'"tick"', b'"news"', b'""', b"", b'"' + b"x" * 3000 + b'"']),
        st.sampled_from([b"n1", b"n2", b"a/b"]),
        st.sampled_from([b"", b"X-Other: 1", b"Authorization: Bearer unknown"]),
    ),
    max_size=6,
)


@settings(max_examples=60)
@given(SENT, st.lists(st.integers(1, 400), max_size=8))
def test_however_requests_are_cut_they_are_answered_as_by_the_parser(
    both: tuple[Site, Site], sent: list[bytes], cuts: list[int]
) -> None:
    stream, parts = b"".join(sent), []
    for cut in cuts:
        parts.append(stream[:cut])
        stream = stream[cut:]
    known, parsing = (bodies(site.send(*parts, stream)) for site in both)
    assert known == parsing


def bodies(answered: bytes) -> list[bytes]:
    """Status lines and bodies: the order of headers is the server's affair."""
    found = []
    while answered:
        head, _, rest = answered.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
        size = int(length) if length.isdigit() else len(rest)
        found += [head.split(b"\r\n")[0], rest[:size]]
        answered = rest[size:]
    return found
