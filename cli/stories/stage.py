"""The stage of a story: a real service and real jobs in a folder of their own, watched over HTTP, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Stage", "StoryError", "free_port", "open_stage"]

T = TypeVar("T")
# A first start compiles the rules.
START_SECONDS = 180.0


class StoryError(Exception):
    """The story did not go as it should; the message says what was waited for and what was there instead."""


held_ports: list[socket.socket] = []


def free_port() -> int:
    """A port of the loopback interface for a server to listen at. Bound until this process ends: nobody else is given it."""
    held = socket.socket()
    # With it on both sides a server may bind the port too, and none but the server listens.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    held_ports.append(held)
    return int(held.getsockname()[1])


@dataclass
class Stage:
    """A running service in `folder`, and the processes started beside it."""

    folder: Path
    port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def data_directory(self) -> Path:
        return self.folder / "data"

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `pitstop ARGUMENTS`, its output in NAME.log. The token of the service is passed by file."""
        environment = {
            **os.environ,
            "PITSTOP_DATA_DIR": str(self.data_directory),
            "PITSTOP_SERVICE": self.url,
            "PITSTOP_TOKEN_FILE": str(self.data_directory / "admin.token"),
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pitstop_entry", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def serve(self) -> subprocess.Popen[bytes]:
        """Start the service and wait until it is ready."""
        process = self.start("service", "serve", "--port", str(self.port))
        self.wait_for("the service to be ready", lambda: self.get("/readyz") is not None, START_SECONDS)
        return process

    def get(self, path: str) -> Any:
        """The JSON document at `path`, or None where there is none (yet)."""
        try:
            return self._ask(path)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def post(self, path: str, **fields: Any) -> Any:
        """What an operator does: the answer's JSON document. Raises StoryError where it is refused."""
        return self._send("POST", path, fields)

    def put(self, path: str, **fields: Any) -> Any:
        """As `post`, for what an operator sets."""
        return self._send("PUT", path, fields)

    def _send(self, method: str, path: str, fields: dict[str, Any]) -> Any:
        try:
            return self._ask(path, json.dumps(fields).encode(), method)
        except urllib.error.HTTPError as error:
            raise StoryError(f"{method} {path} was refused with status {error.code}: {error.read()[:300]!r}") from None

    def _ask(self, path: str, body: bytes | None = None, method: str = "GET") -> Any:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=body, headers=headers, method=method)
        token = self.data_directory / "admin.token"
        if token.exists():
            request.add_header("Authorization", f"Bearer {token.read_text(encoding='utf-8').strip()}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def wait_for(self, what: str, look: Callable[[], T | None], seconds: float) -> T:
        """What `look` returns once that is true. Raises StoryError after `seconds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            time.sleep(0.05)
        raise StoryError(f"waited {seconds:.0f} s for {what}; the logs are in {self.folder}")

    def incident_of(self, job: str) -> dict[str, Any] | None:
        """The newest incident of `job`, whole, or None."""
        listed = self.get(f"/api/v1/incidents?job={job}")
        if not listed or not listed["items"]:
            return None
        newest: dict[str, Any] = max(listed["items"], key=lambda incident: str(incident["first_seen"]))
        whole: dict[str, Any] | None = self.get(f"/api/v1/incidents/{newest['id']}")
        return whole

    def step_of(self, job: str) -> int:
        """The last step that every rank of the job's present generation reported, or -1."""
        document = self.get(f"/api/v1/jobs/{job}") or {"rank_states": []}
        present = [rank for rank in document["rank_states"] if rank["generation"] == document["generation"]]
        steps = [rank["step"] for rank in present if rank["step"] is not None]
        return min(steps, default=-1)

    def close(self) -> None:
        """End what was started here, by process group, the newest first."""
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@contextmanager
def open_stage(folder: Path) -> Iterator[Stage]:
    """A stage in the empty `folder`; whatever happens, its processes are gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    stage = Stage(folder, free_port())
    try:
        yield stage
    finally:
        stage.close()
