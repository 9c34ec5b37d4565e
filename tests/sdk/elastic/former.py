"""The agent's part in the small: stores, formations, and which ranks have ended; in the process of the test."""

from __future__ import annotations

import datetime
import json
import os
import socket
import time
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

from pitstop import protocol
from tests.sdk.elastic.ranks import train
from tests.torch_ranks import start_rank

__all__ = ["Former"]


@dataclass
class Former:
    """Forms a new generation whenever a rank has died, as `pitstop run` does."""

    folder: Path
    world: int
    generation: int = 0
    processes: dict[int, BaseProcess] = field(default_factory=dict)
    members: set[int] = field(default_factory=set)
    formed_at: list[float] = field(default_factory=list)
    _store: Any = None

    @property
    def formation(self) -> Path:
        return self.folder / "formation"

    def open_store(self) -> int:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        port = int(listener.getsockname()[1])
        self._store = TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            timeout=datetime.timedelta(seconds=120),
        )
        return port

    def start(self, steps: int, seed: int, fates: dict[int, Any], **options: Any) -> None:
        port = self.open_store()
        for rank in range(self.world):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                protocol.GENERATION: "0",
                protocol.FORMATION: str(self.formation),
            }
            result = str(self.folder / f"result{rank}")
            self.processes[rank] = start_rank(train, result, steps, seed, fates.get(rank), options, **environment)
        self.members = set(self.processes)

    def join(self, rank: int, steps: int, seed: int, **options: Any) -> None:
        """Start a rank in place of a lost one; the others take it in after the step that they are in."""
        self.members.add(rank)
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            protocol.GENERATION: str(self.generation + 1),
            protocol.FORMATION: str(self.formation),
            protocol.JOINS: "1",
        }
        result = str(self.folder / f"result{rank}")
        self.processes[rank] = start_rank(train, result, steps, seed, None, options, **environment)
        self.form()

    def form(self) -> None:
        self.generation += 1
        port = self.open_store()
        document = {
            "generation": self.generation,
            "members": sorted(self.members),
            "store": {"host": "127.0.0.1", "port": port},
        }
        unfinished = self.formation.with_name("formation.new")
        unfinished.write_text(json.dumps(document))
        unfinished.replace(self.formation)
        self.formed_at.append(time.monotonic())

    def watch(self, seconds: float = 240.0) -> list[dict[str, Any]]:
        """Until every rank has ended; what the ranks that came to the end say."""
        deadline = time.monotonic() + seconds
        running = dict(self.processes)
        while running:
            assert time.monotonic() < deadline, f"ranks {sorted(running)} are still running"
            lost = self.all_wait(set(running))
            for rank, process in list(running.items()):
                if not process.is_alive():
                    del running[rank]
                    lost = lost or process.exitcode != 0
                    self.members.discard(rank)
            if lost and self.members:
                self.form()
            time.sleep(0.001)
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("result[0-9]"))]

    def all_wait(self, running: set[int]) -> bool:
        """Whether everybody who is left waits for a new group: the others came to their end before it."""
        waits = []
        for rank in running:
            try:
                document = json.loads(self.formation.with_name(f"formation.{rank}").read_text())
                waits.append(document["waits_above"])
            except OSError:
                return False
        return bool(waits) and all(above is not None and above >= self.generation for above in waits)

    def end(self) -> None:
        for process in self.processes.values():
            if process.is_alive():
                os.kill(process.pid or 0, 9)
            process.join()
