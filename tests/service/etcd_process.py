"""A real etcd on this machine, which can be killed and started again on the same data."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from cli.stories.stage import free_port
from tests.node.peer import wait_for

__all__ = ["EtcdProcess", "has_etcd"]


def has_etcd() -> bool:
    return shutil.which("etcd") is not None


@dataclass
class EtcdProcess:
    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        peers = f"http://127.0.0.1:{free_port()}"
        options = {
            "data-dir": self.folder,
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with (self.folder.parent / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(["etcd", *words], stdout=log, stderr=log)
        wait_for(self._answers, 60, "etcd's answer")

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/health", timeout=2).json().get("health") == "true"
        except (httpx2.HTTPError, ValueError):
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
