"""`pitstop serve` as a process of its own that can be killed and started again on the same port and data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2

from cli.stories.stage import free_port

START_SECONDS = 180.0
ENTRY = (sys.executable, "-m", "pitstop_entry")


@dataclass
class ServiceProcess:
    """Use as a context; no process is left behind."""

    data_dir: Path
    port: int = field(default_factory=free_port)
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    host: str = "127.0.0.1"
    program: Sequence[str] = ENTRY

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        log = (self.data_dir.parent / "service.log").open("ab")
        command = [*self.program, "serve", "--host", self.host, "--port", str(self.port), "--data-dir", str(self.data_dir)]
        self.process = subprocess.Popen(command, env=os.environ | self.environment, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        # One client: making one takes longer than asking, and would slow down what it waits for.
        with httpx2.Client(base_url=self.url, timeout=2) as client:
            while time.monotonic() < deadline:
                assert self.process.poll() is None, self.log()
                try:
                    if client.get("/healthz").status_code == 200:
                        return
                except httpx2.HTTPError:
                    time.sleep(0.05)
        raise AssertionError(f"the service did not answer: {self.log()}")

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def get(self, path: str) -> Any:
        """The JSON document at `path`, with the admin token; an empty one where there is none."""
        token = (self.data_dir / "admin.token").read_text().strip()
        try:
            answer = httpx2.get(self.url + path, headers={"Authorization": f"Bearer {token}"}, timeout=60)
        except httpx2.HTTPError:
            return {}
        return answer.json() if answer.status_code == 200 else {}

    def log(self) -> str:
        return re.sub(r"\n+", "\n", (self.data_dir.parent / "service.log").read_text(errors="replace"))[-4000:]

    def __enter__(self) -> ServiceProcess:
        self.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.kill()
