"""The agents of 2,000 nodes on one service (SCALE=1): each over a connection of its own renews its lease every second, and then
also sends the heartbeat of the eight ranks that it runs, as `pitstop run` does. Agents and service share this machine."""

from __future__ import annotations

import asyncio
import json
import math
import os
import resource
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from detectors.processes import identify, scheduling
from node.link import BEAT_SECONDS
from service.store import Store
from service.store.events import Event
from tests.service.service_process import ServiceProcess

AGENTS = max(16, int(2000 * float(os.environ.get("SCALE", "1"))))
SECONDS, SETTLING_SECONDS = 15, 3
NODES_A_JOB, RANKS_A_NODE = 8, 8
# An agent that is not answered for so long gives up and tries at its next beat.
ANSWER_SECONDS = 5.0
# How many register at once.
REGISTERING, REGISTERING_SECONDS = 16, 120


class Agent:
    """Speaks HTTP/1.1 by hand: a client library would take more of the machine than the service."""

    def __init__(self, port: int, number: int) -> None:
        self.node, self.number, self.job = f"node-{number:04}", number, f"job-{number // NODES_A_JOB}"
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._step = 0

    async def post(self, path: str, document: dict[str, Any]) -> bool:
        """Whether it was taken."""
        try:
            return await asyncio.wait_for(self._exchange(path, json.dumps(document).encode()), ANSWER_SECONDS)
        except (OSError, EOFError, ValueError, TimeoutError):
            self.close()
            return False

    async def _exchange(self, path: str, body: bytes) -> bool:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"POST /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = answer.partition(b"content-length:")[2].split(b"\r\n", 1)[0]
        await reader.readexactly(int(length))
        return answer.split(b" ", 2)[1] in (b"200", b"201")

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def lease(self) -> bool:
        document = {"boot_id": "b", "agent_id": "a", "aliases": [f"{self.node}.cluster"], "versions": {"pitstop": "0.1.0"}}
        return await self.post(f"nodes/{self.node}/lease", document | {"clock": time.time()})

    async def heartbeat(self) -> bool:
        self._step += 1
        ranks = [{"rank": rank, "step": self._step, "state": "running", "age_seconds": 0.1} for rank in self._ranks()]
        document = {"attempt": 0, "generation": 0, "node": self.node, "ranks": ranks, "time": time.time()}
        return await self.post(f"jobs/{self.job}/heartbeat", document)

    async def register(self) -> bool:
        """Its first lease; the first of a job's agents tells of the job as well."""
        if self.number % NODES_A_JOB == 0:
            ranks = [
                {
                    "rank": rank,
                    "local_rank": rank % RANKS_A_NODE,
                    "node": f"node-{self.number + rank // RANKS_A_NODE:04}",
                    "pid": 1,
                }
                for rank in range(NODES_A_JOB * RANKS_A_NODE)
            ]
            attempt = {"attempt": 0, "generation": 0, "cause": "start", "ranks": ranks}
            job = {"job": self.job, "owner": "ann", "ranks": len(ranks), "nodes": []}
            return await self.post("jobs", job) and await self.post(f"jobs/{self.job}/attempts", attempt) and await self.lease()
        return await self.lease()

    def _ranks(self) -> range:
        first = self.number % NODES_A_JOB * RANKS_A_NODE
        return range(first, first + RANKS_A_NODE)


@dataclass
class Window:
    """What is counted of the beats that begin from `opened` to `closed`.

    `seconds`: each answer to a lease that came. `late`: beats whose answers came after the next beat was due. `behind`: how late
    the agents themselves began, where no answer kept them.
    """

    opened: float = math.inf
    closed: float = math.inf
    seconds: list[float] = field(default_factory=list)
    behind: list[float] = field(default_factory=list)
    missed: int = 0
    late: int = 0

    def note(self, due: float, asked: float, leased: float | None, missed: int) -> None:
        """One beat. `leased`: when the lease was answered."""
        if not self.opened <= asked < self.closed:
            return
        self.behind.append(asked - due)
        self.seconds += [] if leased is None else [leased - asked]
        self.missed += missed
        self.late += time.monotonic() > due + BEAT_SECONDS


async def live(agent: Agent, talks: bool, places: asyncio.Semaphore, registered: asyncio.Semaphore, window: Window) -> None:
    """Register, and beat until the window is closed; like a real agent, which waits for its answers and then beats again."""
    async with places:
        while not await agent.register():
            await asyncio.sleep(BEAT_SECONDS)
    registered.release()
    due = time.monotonic() + agent.number / AGENTS * BEAT_SECONDS
    while due < window.closed:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        asked = time.monotonic()
        leased = time.monotonic() if await agent.lease() else None
        missed = (leased is None) + (talks and not await agent.heartbeat())
        window.note(due, asked, leased, missed)
        due = max(due + BEAT_SECONDS, time.monotonic())
    agent.close()


def quantile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else math.nan


def processor_seconds(service: ServiceProcess) -> float:
    """Of the process that answers; the one that matches lines has nothing to do here."""
    process = identify(service.process.pid) if service.process is not None else None
    spent = scheduling(process) if process is not None else None
    assert spent is not None, service.log()
    return spent.cpu_seconds


async def measured(service: ServiceProcess, talks: bool) -> tuple[Window, float, float]:
    """(what was counted, processor seconds of the service, when it was over by the wall clock)"""
    window, places, registered = Window(), asyncio.Semaphore(REGISTERING), asyncio.Semaphore(0)
    agents = [
        asyncio.create_task(live(Agent(service.port, number), talks, places, registered, window)) for number in range(AGENTS)
    ]
    async with asyncio.timeout(REGISTERING_SECONDS):
        for _ in agents:
            await registered.acquire()
    await asyncio.sleep(SETTLING_SECONDS)
    spent, window.opened = processor_seconds(service), time.monotonic()
    await asyncio.sleep(SECONDS)
    window.closed, spent, over = time.monotonic(), processor_seconds(service) - spent, time.time()
    await asyncio.gather(*agents)
    return window, spent, over


def row(name: str, talks: bool) -> str:
    """One service of its own, and its line in the table."""
    with tempfile.TemporaryDirectory() as folder:
        with ServiceProcess(Path(folder) / "data") as service:
            window, spent, over = asyncio.run(measured(service, talks))
        store = Store(f"sqlite:///{Path(folder) / 'data' / 'pitstop.sqlite'}")
        with store.reading() as session:
            told = select(func.count()).select_from(Event).where(Event.kind == "node.silent", Event.time <= over)
            silent = session.scalar(told)
        store.close()
    times = " | ".join(f"{1e3 * quantile(window.seconds, part):.0f}" for part in (0.5, 0.99, 1.0))
    share, behind = spent / (window.closed - window.opened), 1e3 * quantile(window.behind, 0.99)
    return (
        f"| {name} | {len(window.seconds)} | {window.missed} | {window.late} | {times} | {share:.0%} | {silent} | {behind:.0f} |"
    )


def run() -> str:
    """The table for benchmarks/results/agents.md."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The service inherits it: each of the two holds a connection for every agent.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    columns = (
        "every second",
        "leases answered",
        "requests missed",
        "beats late",
        "lease p50, ms",
        "p99, ms",
        "worst, ms",
        "service, share of one core",
        "judged silent",
        "agents' own delay p99, ms",
    )
    return "\n".join(
        [
            f"# {AGENTS:,} agents on one service\n\n{__doc__}\n",
            f"{SECONDS} s each, once all are registered. Late: the next beat was due before the answers of this one were there.",
            "The agents' own delay is what this machine adds. Required: none judged silent, leases under 30 % of one core.\n",
            f"| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}",
            row("lease", talks=False),
            row("lease and heartbeat of 8 ranks", talks=True),
        ]
    )
