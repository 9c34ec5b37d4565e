"""An OpenAI-compatible HTTP server on loopback that answers what a test tells it to, well or badly."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# What the server does with one request: a status with a body, or None to drop the connection.
Reply = tuple[int, str] | None
Script = Callable[[dict[str, Any], int], Reply]


def completion(content: str | None, tokens: tuple[int, int] = (100, 20)) -> Reply:
    """A well-formed chat completion with `content` as the model's words."""
    document = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
    }
    return 200, json.dumps(document)


def verdict(**fields: Any) -> Reply:
    """A completion that holds an answer of the agent's schema, `fields` replaced."""
    answer = {
        "action": "answer",
        "argument": "",
        "reason": "unknown",
        "user_fault": False,
        "confidence": 80,
        "lines": [],
        "mitigation": "m",
        "falsifier": "f",
    }
    return completion(json.dumps(answer | fields))


class ScriptedEndpoint:
    """`script` is asked for each request with its body and its number, from 0; `requests` keeps the bodies."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.script: Script = lambda _body, _number: verdict()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.requests.append(body)
                reply = owner.script(body, len(owner.requests) - 1)
                if reply is None:
                    self.close_connection = True
                    return
                status, text = reply
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
