"""Requests whose heads are known are answered before anything is parsed; see service/short_way.py."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, cast

from fastapi import FastAPI
from pydantic_core import to_json

from service.heads import BoundedHeads
from service.short_way import Asked, ShortWays
from service.state import Service

__all__ = ["KnownHeads"]

END = b"\r\n\r\n"


@lru_cache(maxsize=1)
def lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """The same for all answers of a second."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


class KnownHeads(BoundedHeads):
    """The server's protocol, for an application with `state.short_ways`."""

    # Of a request that is not at its end: whether the parser has its beginning; else what came of it, whose head is known.
    _parsing = False
    _kept = b""
    # Of the request that is parsed next.
    _head = b""
    # What was answered last on this connection: its head and END, what that asks for, and how long its body is.
    _again = b""
    _asked: Asked
    _length = 0
    _answered_at = -math.inf

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        state = cast(FastAPI, self.config.app).state
        self._ways: ShortWays = state.short_ways
        self._service: Service = state.pitstop

    def data_received(self, data: bytes) -> None:
        again = self._again
        if again and len(data) == len(again) + self._length and data.startswith(again):
            document = self._asked.answered(self._service, data[len(again) :])
            if document is not None:
                self._answer(document)
                return
            self._parse(again[: -len(END)], data)
            return
        self._again = b""
        if self._parsing or not (self.cycle is None or self.cycle.response_complete):
            super().data_received(data)
            return
        data = self._kept + data
        self._kept = b""
        head, end, body = data.partition(END)
        known = self._ways.known(self.client[0], head) if end and self.client else None
        if known is not None:
            asked, length = known
            if len(body) < length:
                self._kept = data
                return
            document = asked.answered(self._service, body) if len(body) == length else None
            if document is not None:
                self._again, self._asked, self._length = head + END, asked, length
                self._answer(document)
                return
        self._parse(head if end else b"", data)

    def _parse(self, head: bytes, data: bytes) -> None:
        self._again = b""
        self._head = head
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._parsing = True
        self.scope["state"]["head"] = self._head
        self._head = b""

    def on_message_complete(self) -> None:
        self._parsing = False
        super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        """One timer for many answers: set anew for each, it would take as long as they do."""
        idle = self.loop.time() - self._answered_at
        if idle < self.timeout_keep_alive:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive - idle, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _answer(self, document: dict[str, Any]) -> None:
        content = to_json(document)
        headers = lines(tuple(self.server_state.default_headers))
        kind = b"content-type: application/json\r\ncontent-length: %d" % len(content)
        self.transport.write(b"HTTP/1.1 200 OK\r\n" + headers + kind + END + content)
        self._answered_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.on_response_complete()
