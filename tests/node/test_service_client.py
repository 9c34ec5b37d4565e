"""The agent's calls of the service, against servers that behave, and some that do not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from node.service_client import Refused, ServiceClient, ServiceUnavailable

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"id": 7}'


@contextmanager
def server(*connections: tuple[bytes, ...]) -> Iterator[tuple[int, list[bytes]]]:
    """(port, heads of the requests that came): each connection gives its answers, then is closed."""
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def play() -> None:
            for answers in connections:
                end, _ = listener.accept()
                with end, end.makefile("rb") as source:
                    for answer in answers:
                        head = b"".join(iter(source.readline, b"\r\n"))
                        if not head:
                            break
                        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                        source.read(int(length or 0))
                        heads.append(head)
                        end.sendall(answer)

        threading.Thread(target=play, daemon=True).start()
        yield listener.getsockname()[1], heads


def client_of(port: int, path: str = "", token: str | None = None) -> ServiceClient:
    return ServiceClient(f"http://127.0.0.1:{port}{path}", token, timeout_seconds=20)


def test_calls_share_a_connection_and_say_the_same_of_themselves_each_time() -> None:
    with server((OK, OK)) as (port, heads):
        client = client_of(port, "/pitstop/", "secret")
        assert client.renew_lease("n 1", {}) == client.renew_lease("n 1", {}) == {"id": 7}
    assert heads[0] == heads[1] and heads[0].startswith(b"POST /pitstop/api/v1/nodes/n%201/lease HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer secret\r\n" in heads[0]


def test_a_connection_that_the_service_closed_between_two_calls_is_not_missed() -> None:
    with server((OK,), (OK,)) as (port, heads):
        client = client_of(port)
        client.renew_lease("n1", {})
        kept = client._connection._connection.sock
        # The end of it is here before the next call.
        assert kept.recv(1, socket.MSG_PEEK) == b""
        client.renew_lease("n1", {})
    assert len(heads) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    ],
)
def test_an_answer_that_is_none_leaves_nothing_of_its_connection_to_the_next_call(answer: bytes) -> None:
    with server((answer,), (OK,)) as (port, _):
        client = client_of(port)
        with pytest.raises(ServiceUnavailable, match=r"."):
            client.register_job({})
        assert client.register_job({}) == {"id": 7}


@pytest.mark.parametrize("status", [b"503 Busy", b"429 Slower"])
def test_an_answer_that_asks_to_come_again_is_no_refusal(status: bytes) -> None:
    busy = b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status
    with server((busy, OK)) as (port, _):
        client = client_of(port)
        with pytest.raises(ServiceUnavailable, match=status[:3].decode()):
            client.send_logs("b1", b"{}")
        assert client.send_logs("b1", b"{}") == {"id": 7}


def test_a_refusal_is_told_in_the_words_of_the_service() -> None:
    body = b'{"detail": "not yours"}'
    refusal = b"HTTP/1.1 403 No\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with server((refusal,)) as (port, _), pytest.raises(Refused, match=r"^403 not yours$"):
        client_of(port).send_logs("b1", b"{}")


@pytest.mark.parametrize(
    ("service", "token"), [("http://nowhere.invalid", None), ("http://127.0.0.1:9", "two\nlines"), ("https://127.0.0.1:9", None)]
)
def test_whatever_is_in_the_way_is_a_service_that_does_not_answer(service: str, token: str | None) -> None:
    with pytest.raises(ServiceUnavailable, match=r"."):
        ServiceClient(service, token).heartbeat("job", {})
