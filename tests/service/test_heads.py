"""What comes before a body, without bounds: refused with 431, and not kept."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from service.heads import MAX_HEAD_BYTES, MAX_HEADERS, BoundedHeads
from service.server import listen


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the number of bytes that it was sent."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % size})


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application, http=BoundedHeads, lifespan="off", log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield listener.getsockname()
    server.should_exit = True
    thread.join()


def answer_to(address: tuple[str, int], sent: bytes) -> bytes:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def filled(size: int, start: bytes) -> bytes:
    return start + b"x" * (size - len(start))


TRAILER = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: "


@pytest.mark.parametrize(
    "sent",
    [
        filled(MAX_HEAD_BYTES + 1, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Endless: "),
        filled(MAX_HEAD_BYTES + 10, b"GET /?"),
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (MAX_HEADERS + 1) + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: %b\r\n" % (b"x" * 1024) * 64,
        filled(MAX_HEAD_BYTES + 1, TRAILER),
    ],
    ids=["an endless header", "an endless address", "many headers", "large headers", "an endless trailer"],
)
def test_a_head_without_bounds_is_refused(address: tuple[str, int], sent: bytes) -> None:
    answer = answer_to(address, sent)
    assert answer.startswith(b"HTTP/1.1 431 ") and b"application/problem+json" in answer, answer[:300]


def test_what_is_no_http_gets_a_problem_document(address: tuple[str, int]) -> None:
    answer = answer_to(address, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ") and b"application/problem+json" in answer


def test_a_large_body_and_many_requests_on_one_connection_are_no_large_head(address: tuple[str, int]) -> None:
    large = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000
    small = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: %b\r\n\r\n" % (b"x" * 30_000)
    last = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = answer_to(address, large + small * 5 + last)
    assert answer.count(b"HTTP/1.1 200 ") == 7 and b"1000000" in answer
