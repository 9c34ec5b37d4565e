"""A node of a site whose launcher obeys Pitstop: python node_launcher.py NODE URL TOKEN FOLDER [JOB:NODE,NODE,...]

It holds the lease of the node, starts and ends one rank a job here as the commands say, reports steps and failures. A rank
is a process that takes a step together with the others of its generation over TCP, and ends when one of them is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BEAT_SECONDS = 0.3
# Ranks end the moment a peer is gone; by then no lease has run out yet.
TELL_AFTER_SECONDS = 8.0
WORK_SECONDS = 0.6


def train(folder: Path, job: str, rank: int, ranks: int, generation: int) -> None:
    """Steps from the last one that was written down; the work of a step is shared by the ranks."""
    port, mark = folder / f"{job}.{generation}.port", folder / f"{job}.step"
    if rank == 0:
        server = socket.create_server(("127.0.0.1", 0))
        unfinished = port.with_suffix(".new")
        unfinished.write_text(str(server.getsockname()[1]))
        unfinished.replace(port)
        peers = [server.accept()[0] for _ in range(ranks - 1)]
    else:
        while not port.exists():
            time.sleep(0.02)
        peers = [socket.create_connection(("127.0.0.1", int(port.read_text())))]
    step = int(mark.read_text()) if mark.exists() else 0
    while True:
        step += 1
        time.sleep(WORK_SECONDS / ranks)
        for peer in peers:
            peer.sendall(b".")
        for peer in peers:
            if not peer.recv(1):
                raise SystemExit("connection closed by peer")
        if rank == 0:
            unfinished = mark.with_suffix(".new")
            unfinished.write_text(str(step))
            unfinished.replace(mark)


@dataclass
class Rank:
    nodes: list[str]
    generation: int
    process: subprocess.Popen[bytes]
    began: float
    first: int
    ended: float | None = None
    told: bool = False


@dataclass
class Node:
    name: str
    url: str
    token: str
    folder: Path
    after: int = 0
    ranks: dict[str, Rank] = field(default_factory=dict)

    def call(self, method: str, path: str, document: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/api/v1/{path}",
            None if document is None else json.dumps(document).encode(),
            {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def step(self, job: str) -> int:
        mark = self.folder / f"{job}.step"
        return int(mark.read_text()) if mark.exists() else 0

    def start(self, job: str, nodes: list[str], generation: int) -> None:
        self.end(job)
        rank = nodes.index(self.name)
        command = [sys.executable, __file__, "train", str(self.folder), job, str(rank), str(len(nodes)), str(generation)]
        self.ranks[job] = Rank(nodes, generation, subprocess.Popen(command), time.monotonic(), self.step(job))
        if rank == 0:
            placed = [{"rank": number, "local_rank": 0, "node": node, "pid": 1} for number, node in enumerate(nodes)]
            cause = "restart" if generation else "start"
            self.call(
                "POST", f"jobs/{job}/attempts", {"attempt": generation, "generation": generation, "cause": cause, "ranks": placed}
            )

    def end(self, job: str) -> None:
        rank = self.ranks.pop(job, None)
        if rank is not None:
            rank.process.kill()
            rank.process.wait()

    def obey(self) -> None:
        for command in self.call("GET", f"nodes/{self.name}/commands?after={self.after}&wait=0")["items"]:
            self.after = command["id"]
            job, generation = command["job"], command["generation"]
            running = self.ranks.get(job)
            answer = {"status": "done", "generation": generation, "detail": command["kind"]}
            if running is not None and command["kind"] == "restart_ranks" and generation <= running.generation:
                answer = {"status": "refused", "generation": running.generation, "detail": "not above the present generation"}
            elif command["kind"] == "restart_ranks":
                self.start(job, command["args"]["nodes"], generation)
            else:
                self.end(job)
            self.call("POST", f"nodes/{self.name}/commands/{command['id']}/result", answer)

    def report(self, job: str, rank: Rank) -> None:
        now, code = time.monotonic(), rank.process.poll()
        about = {"attempt": rank.generation, "generation": rank.generation}
        number = rank.nodes.index(self.name)
        if code is None:
            taken = self.step(job) - rank.first
            told: dict[str, Any] = {"rank": number, "state": "running", "step": self.step(job) if taken else rank.first}
            if taken >= 3:
                told["step_seconds"] = WORK_SECONDS / len(rank.nodes)
            self.call("POST", f"jobs/{job}/heartbeat", about | {"node": self.name, "ranks": [told]})
            return
        rank.ended = rank.ended or now
        if not rank.told and now - rank.ended > TELL_AFTER_SECONDS:
            rank.told = True
            failed = [
                {"rank": number, "node": self.name, "exit_code": code, "signal": None, "error": "connection closed by peer"}
            ]
            report = about | {"idempotency_key": f"{job}-{rank.generation}-{number}", "failed": failed}
            self.call("POST", f"jobs/{job}/failures?wait=0", report | {"last_step": self.step(job)})

    def turn(self) -> None:
        lease = {"boot_id": "b", "agent_id": self.name, "aliases": [], "versions": {}, "clock": time.time()}
        self.call("POST", f"nodes/{self.name}/lease", lease)
        self.obey()
        for job, rank in list(self.ranks.items()):
            self.report(job, rank)


def main() -> None:
    name, url, token, folder, *jobs = sys.argv[1:]
    node = Node(name, url, token, Path(folder))
    # What was commanded to the node before it died is not for this life of it.
    node.after = max((command["id"] for command in node.call("GET", f"nodes/{name}/commands?after=0&wait=0")["items"]), default=0)
    for job in jobs:
        title, _, nodes = job.partition(":")
        node.start(title, nodes.split(","), 0)
    while os.getppid() != 1:
        with contextlib.suppress(urllib.error.URLError, TimeoutError, ConnectionError):
            node.turn()
        time.sleep(BEAT_SECONDS)


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(Path(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:7]))
    else:
        main()
