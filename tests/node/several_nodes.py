"""The agents of one job on several nodes, all on one machine: `pitstop run` as real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from cli.stories.stage import free_port
from tests.node.peer import Peer, Runs, wait_for

__all__ = ["Nodes"]


class Nodes:
    """Agents of one job, by the name of their node."""

    def __init__(self, runs: Runs, peer: Peer, script: Path, flag: Path, job: str = "job") -> None:
        self.runs, self.peer, self.flag = runs, peer, flag
        self.script, self.job = script, job
        self.rendezvous = f"127.0.0.1:{free_port()}"
        self.agents: dict[str, subprocess.Popen[str]] = {}

    def start(self, node: str, *arguments: str, nnodes: str = "1:2", **options: Any) -> subprocess.Popen[str]:
        options |= {"job": self.job, "nnodes": nnodes, "rendezvous": self.rendezvous, "node_rank": int(node[1:]) - 1}
        self.agents[node] = self.runs.start(self.script, str(self.flag), *arguments, node=node, **options)
        return self.agents[node]

    def care(self, node: str) -> dict[str, Any]:
        try:
            care: dict[str, Any] = self.runs.state(self.job, node)["care"]
        except (FileNotFoundError, KeyError):
            return {}
        return care

    def running(self, node: str, generation: int) -> bool:
        care = self.care(node)
        return bool(care) and care["phase"] == "running" and care["generation"] == generation

    def pids(self, node: str) -> dict[int, int]:
        return {item["rank"]: item["process"]["pid"] for item in self.runs.state(self.job, node)["placement"]["processes"]}

    def command(
        self, number: int, node: str, generation: int, nodes: list[str], kind: str = "restart_ranks", **args: Any
    ) -> None:
        row = {"id": number, "node": node, "job": "job", "generation": generation, "kind": kind}
        self.peer.rows.append({**row, "args": {"nodes": nodes, **args}, "deadline": None})

    def kill(self, node: str) -> None:
        """As a machine that loses its power: the agent, its keeper and all their processes."""
        mark = f"PITSTOP_DATA_DIR={self.runs.data(node)}\0".encode()
        self.agents[node].kill()
        for pid in self.runs.processes():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        self.agents[node].communicate()

    def finish(self, *nodes: str) -> dict[str, str]:
        """Let the job end well; what each agent said."""
        self.flag.touch()
        said = {node: self.agents[node].communicate(timeout=120)[1] for node in nodes}
        assert [self.agents[node].returncode for node in nodes] == [0] * len(nodes), said
        wait_for(lambda: self.runs.processes() == [], what="the end of every process")
        return said
