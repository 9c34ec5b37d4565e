"""The service's side of the contract as a small scripted server on a real socket, and `pitstop run` as a real process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from node.ranks import monitor_folder

ROOT = Path(__file__).parents[2]
# The interpreter that the virtual environment came from: it has no torch, so that no store process imports it.
BARE_PYTHON = str(Path(sys.base_prefix) / "bin" / "python3")


def lines_in(body: str | bytes) -> list[dict[str, Any]]:
    """The lines of a batch, each with what its record says of all of them."""
    found = []
    for record in map(json.loads, body.splitlines()):
        texts = record["line"].split("\n")
        if "lines" in record:
            assert texts.pop() == "" and len(texts) == record.pop("lines")
        found += [{**record, "number": number, "line": text} for number, text in enumerate(texts, record["number"])]
    return found


@dataclass
class Peer:
    """Keeps what an agent posted. `rows`: the commands that it hands out; `directive`: the answer to a failure."""

    port: int = 0
    requests: list[tuple[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    batches: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    directive: dict[str, Any] = field(default_factory=lambda: {"directive": "wait", "mode": "auto"})
    on_failure: Callable[[dict[str, Any]], None] = lambda _: None
    lose_log_answers: bool = False
    _server: ThreadingHTTPServer | None = None

    def up(self) -> None:
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, status: int, document: dict[str, Any]) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                after, deadline = int(query["after"][0]), time.monotonic() + float(query["wait"][0])
                node = self.path.split("/")[4]

                def rows() -> list[dict[str, Any]]:
                    return [row for row in peer.rows if row["id"] > after and row.get("node", node) == node]

                while not (found := rows()) and time.monotonic() < deadline:
                    if peer._server is None:
                        return
                    time.sleep(0.02)
                self.answer(200, {"items": found, "total": len(found), "next_cursor": None})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                if self.path == "/api/v1/logs":
                    batch = self.headers["Pitstop-Batch"]
                    duplicate = batch in peer.batches
                    if not duplicate:
                        peer.batches[batch] = lines_in(body)
                    self.answer(503 if peer.lose_log_answers else 200, {"duplicate": duplicate})
                    return
                document = json.loads(body)
                peer.requests.append((self.path.split("?")[0].removeprefix("/api/v1/"), document))
                if "/failures" in self.path:
                    peer.on_failure(document)
                    self.answer(200, peer.directive)
                else:
                    self.answer(200, {"ttl_seconds": 3.0, "time": time.time()})

            def log_message(self, *_: object) -> None:
                return None

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_: object) -> None:
                """An agent that was killed in the middle of an answer is no error here."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def down(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def posted(self, suffix: str) -> list[Any]:
        return [document for path, document in self.requests if path.endswith(suffix)]

    def attempt(self, generation: int, ranks: int) -> dict[str, Any]:
        """The attempt of this generation once it is told of with the processes of so many ranks."""

        def told() -> list[dict[str, Any]]:
            attempts = [item for item in self.posted("/attempts") if item["generation"] == generation]
            return [item for item in attempts if len(item["ranks"]) == ranks]

        found: dict[str, Any] = wait_for(told, what=f"the attempt of generation {generation} with {ranks} ranks")[-1]
        return found

    def lines(self, rank: int | None = None) -> list[str]:
        # As they are now: more may arrive while they are looked through.
        batches = list(self.batches.values())
        items = [item for batch in batches for item in batch if rank is None or item["rank"] == rank]
        return [item["line"] for item in sorted(items, key=lambda item: (item["path"], item["number"]))]


def wait_for(condition: Callable[[], Any], seconds: float = 100.0, what: str = "it") -> Any:
    """The condition's first true value; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {seconds} s")


@dataclass
class Runs:
    """Starts `pitstop run` on a data directory of its own; nothing of it outlives the test."""

    folder: Path
    service: str
    python: str = BARE_PYTHON
    environment: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self,
        script: Path,
        *arguments: str,
        ranks: int = 2,
        job: str = "job",
        node: str = "n1",
        flags: Sequence[str] = (),
        inside: Sequence[str] = (),
        **options: Any,
    ) -> subprocess.Popen[str]:
        extra = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONPATH": str(ROOT / "sdk"),
            "PITSTOP_DATA_DIR": str(self.data(node)),
            "PITSTOP_SERVICE": self.service,
        }
        entry = [sys.executable, str(ROOT / "pitstop_entry.py"), "run", "--job", job, "--ranks", str(ranks), "--node", node]
        process = subprocess.Popen(
            [*inside, *entry, *extra, *flags, "--", self.python, str(script), *arguments],
            env=environment | self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def data(self, node: str) -> Path:
        """The data directory of a node; several nodes are on one machine here."""
        return self.folder / ("data" if node == "n1" else f"data-{node}")

    def state(self, job: str = "job", node: str = "n1") -> dict[str, Any]:
        return json.loads((self.data(node) / "run" / job / "state.json").read_text())

    def processes(self) -> list[int]:
        """Pids of whatever bears this test's folder in its command line or environment."""
        found = []
        needle = str(self.folder).encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                if needle in (entry / "cmdline").read_bytes() or needle in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()
        for pid in self.processes():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        for job in self.folder.glob("data*/run/*"):
            shutil.rmtree(monitor_folder(job), ignore_errors=True)
