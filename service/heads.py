"""What comes before the body of a request is bounded too: request line, headers and trailers, in bytes and in number."""

from __future__ import annotations

from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.problems import problem_response

__all__ = ["MAX_HEADERS", "MAX_HEAD_BYTES", "BoundedHeads"]

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100


class BoundedHeads(HttpToolsProtocol):
    """uvicorn's protocol, whose parser takes heads of any size, with 431 for larger ones; what is no HTTP gets a problem too."""

    # Of this request: what of its head is parsed, and what was received without getting as far as a piece of its body.
    _head_bytes = 0
    _unparsed_bytes = 0
    _got_on = False
    _excess = ""

    def data_received(self, data: bytes) -> None:
        self._got_on = False
        super().data_received(data)
        self._unparsed_bytes = 0 if self._got_on else self._unparsed_bytes + len(data)
        if self._unparsed_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._excess = f"the head of a request has at most {MAX_HEAD_BYTES} bytes"
            self.send_400_response(self._excess)

    def on_message_begin(self) -> None:
        self._head_bytes = self._unparsed_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._excess = f"a request has at most {MAX_HEADERS} headers"
            raise ValueError(self._excess)

    def on_body(self, body: bytes) -> None:
        self._got_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._got_on = True
        super().on_message_complete()

    def _count(self, size: int) -> None:
        """Raises ValueError, which the parser turns into `send_400_response`."""
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._excess = f"the head of a request has at most {MAX_HEAD_BYTES} bytes"
            raise ValueError(self._excess)

    def send_400_response(self, msg: str) -> None:
        """The last words on this connection."""
        answer = problem_response(431, self._excess) if self._excess else problem_response(400, msg)
        head = b"".join(b"%b: %b\r\n" % header for header in answer.raw_headers)
        line = f"HTTP/1.1 {answer.status_code} {HTTPStatus(answer.status_code).phrase}\r\n".encode()
        self.transport.write(line + head + b"connection: close\r\n\r\n" + bytes(answer.body))
        self.transport.close()
