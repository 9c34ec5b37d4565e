"""The agents of 2,000 nodes (SCALE=1) on one service, and on two replicas: each over a connection of its own renews its lease
every second. Half as many run jobs of 64 ranks, and then send the heartbeat of their eight. Agents and service share this
machine."""

from __future__ import annotations

import asyncio
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from detectors.processes import identify, scheduling
from node.link import BEAT_SECONDS
from service.store import Store
from service.store.events import Event, last_event_id
from service.store.incidents import Incident
from service.store.recoveries import CommandRow
from tests.service.postgres import postgres
from tests.service.service_process import ENTRY, ServiceProcess

AGENTS = max(16, int(2000 * float(os.environ.get("SCALE", "1"))))
SECONDS, STARTING_SECONDS = 15, 120
PAUSE_SECONDS, DOWN_SECONDS = 10, 60
NODES_A_JOB, RANKS_A_NODE = 8, 8
# An agent that is not answered for so long gives up and tries at its next beat.
ANSWER_SECONDS = 5.0

# A service whose wall clock can be moved by an hour and back, where that of the machine has to stay.
MOVABLE_CLOCK = """
import signal, time
true, moved = time.time, [0.0]
time.time = lambda: true() + moved[0]
signal.signal(signal.SIGUSR1, lambda *_: moved.__setitem__(0, 3600.0))
signal.signal(signal.SIGUSR2, lambda *_: moved.__setitem__(0, 0.0))
from pitstop_entry import main
main()
"""


@dataclass
class Window:
    """What is counted of a scene. `heard`: agents whose lease was answered; `behind`: how late agents themselves began."""

    seconds: list[float] = field(default_factory=list)
    behind: list[float] = field(default_factory=list)
    heard: set[int] = field(default_factory=set)
    missed: int = 0


@dataclass
class Fleet:
    """All agents. `ports`: of the replicas; who gets no answer from one asks the next."""

    ports: Sequence[int]
    talks: bool
    size: int = AGENTS
    window: Window = field(default_factory=Window)
    over: bool = False
    # Jobs that are told of: the other agents of a job wait for that before they speak of it.
    jobs: set[str] = field(default_factory=set)


class Agent:
    """Speaks HTTP/1.1 by hand: a client library would take more of the machine than the service."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.node, self.number, self.job = f"node-{number:04}", number, f"job-{number // NODES_A_JOB}"
        self._fleet = fleet
        self._replica = number
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._step = 0

    async def post(self, path: str, document: dict[str, Any]) -> bool:
        """Whether it was taken."""
        try:
            return await asyncio.wait_for(self._exchange(path, json.dumps(document).encode()), ANSWER_SECONDS)
        except (OSError, EOFError, ValueError, TimeoutError):
            self.close()
            self._replica += 1
            return False

    async def _exchange(self, path: str, body: bytes) -> bool:
        if self._streams is None:
            ports = self._fleet.ports
            self._streams = await asyncio.open_connection("127.0.0.1", ports[self._replica % len(ports)])
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
        first = self.number % NODES_A_JOB * RANKS_A_NODE
        ranks = [
            {"rank": rank, "step": self._step, "state": "running", "age_seconds": 0.1}
            for rank in range(first, first + RANKS_A_NODE)
        ]
        document = {"attempt": 0, "generation": 0, "node": self.node, "ranks": ranks, "time": time.time()}
        return await self.post(f"jobs/{self.job}/heartbeat", document)

    async def start_job(self) -> bool:
        """The first of a job's agents tells of it."""
        if self.number % NODES_A_JOB or not self._fleet.talks or self.job in self._fleet.jobs:
            return True
        ranks = [
            {"rank": rank, "local_rank": rank % RANKS_A_NODE, "node": f"node-{self.number + rank // RANKS_A_NODE:04}", "pid": 1}
            for rank in range(NODES_A_JOB * RANKS_A_NODE)
        ]
        attempt = {"attempt": 0, "generation": 0, "cause": "start", "ranks": ranks}
        job = {"job": self.job, "owner": "ann", "ranks": len(ranks), "nodes": []}
        if await self.post("jobs", job) and await self.post(f"jobs/{self.job}/attempts", attempt):
            self._fleet.jobs.add(self.job)
            return True
        return False

    async def live(self) -> None:
        """Register, and beat until all is over; like a real agent, which waits for its answers and then beats again."""
        while not (await self.start_job() and await self.lease()) and not self._fleet.over:
            await asyncio.sleep(BEAT_SECONDS)
        due = time.monotonic() + self.number / self._fleet.size * BEAT_SECONDS
        while not self._fleet.over:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            asked, window = time.monotonic(), self._fleet.window
            window.behind.append(asked - due)
            if await self.lease():
                window.seconds.append(time.monotonic() - asked)
                window.heard.add(self.number)
            else:
                window.missed += 1
            window.missed += self.job in self._fleet.jobs and not await self.heartbeat()
            due = max(due + BEAT_SECONDS, time.monotonic())
        self.close()


def quantile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else math.nan


def processor_seconds(services: Sequence[ServiceProcess]) -> float:
    """Of the processes that answer; those that match lines have nothing to do here."""
    processes = [identify(service.process.pid) for service in services if service.process is not None]
    spent = [scheduling(process) for process in processes if process is not None]
    return sum(found.cpu_seconds for found in spent if found is not None)


def judged(store: Store, since: int) -> tuple[int, int, int, int]:
    """(nodes told silent after event `since`, incidents: what a lost node would be, commands to processes, the newest event)"""
    with store.reading() as session:
        silent = select(func.count()).select_from(Event).where(Event.kind == "node.silent", Event.id > since)
        counts = [
            session.scalar(count) or 0 for count in (silent, select(func.count(Incident.id)), select(func.count(CommandRow.id)))
        ]
        return counts[0], counts[1], counts[2], last_event_id(session)


@dataclass
class Scene:
    """What happens to the services, and what is seen until SECONDS after it."""

    name: str
    happen: Callable[[], object] = lambda: None


async def play(services: Sequence[ServiceProcess], store: Store, talks: bool, scenes: Sequence[Scene]) -> list[str]:
    """Lines of the table: the start of all agents at once, and each scene."""
    fleet = Fleet([service.port for service in services], talks, AGENTS // 2 if talks else AGENTS)
    before = judged(store, 0)[3]
    spent, began = processor_seconds(services), time.monotonic()
    agents = [asyncio.create_task(Agent(fleet, number).live()) for number in range(fleet.size)]
    while len(fleet.window.heard) < fleet.size and time.monotonic() < began + STARTING_SECONDS:
        await asyncio.sleep(0.1)
    seconds = time.monotonic() - began
    name = f"{fleet.size:,} start at once{' with their jobs' if talks else ''} ({seconds:.0f} s)"
    lines = [line(name, fleet.window, (processor_seconds(services) - spent) / seconds, judged(store, before))]
    for scene in scenes:
        before = judged(store, 0)[3]
        await asyncio.to_thread(scene.happen)
        spent, began, fleet.window = processor_seconds(services), time.monotonic(), Window()
        await asyncio.sleep(SECONDS)
        share = (processor_seconds(services) - spent) / (time.monotonic() - began)
        lines.append(line(scene.name, fleet.window, share, judged(store, before)))
    fleet.over = True
    await asyncio.gather(*agents)
    return lines


def line(name: str, window: Window, share: float, seen: tuple[int, int, int, int]) -> str:
    times = " | ".join(f"{1e3 * quantile(window.seconds, part):.0f}" for part in (0.5, 0.99))
    silent, lost, commands, _ = seen
    counts = f"{len(window.heard)} | {len(window.seconds)} | {window.missed}"
    behind = 1e3 * quantile(window.behind, 0.99)
    row = f"| {name} | {counts} | {times} | {share:.0%} | {silent} | {lost} | {commands} | {behind:.0f} |"
    print(row, flush=True)
    return row


@contextmanager
def one_service(program: Sequence[str] = ENTRY) -> Iterator[tuple[list[ServiceProcess], Store]]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with ServiceProcess(data, program=program) as service:
            store = Store(f"sqlite:///{data / 'pitstop.sqlite'}")
            yield [service], store
            store.close()


@contextmanager
def two_replicas() -> Iterator[tuple[list[ServiceProcess], Store]]:
    with postgres() as url, tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / name / "data" for name in ("one", "two")]
        for place in places:
            place.parent.mkdir()
        store = Store(url)
        first, second = (ServiceProcess(place, environment={"PITSTOP_DATABASE": url}) for place in places)
        with first, second:
            yield [first, second], store
        store.close()


def away(service: ServiceProcess, seconds: float) -> None:
    service.kill()
    time.sleep(seconds)
    service.start()


def stopped(service: ServiceProcess, seconds: float) -> None:
    tell(service, signal.SIGSTOP)
    time.sleep(seconds)
    tell(service, signal.SIGCONT)


def tell(service: ServiceProcess, number: signal.Signals) -> None:
    assert service.process is not None
    service.process.send_signal(number)


def lines() -> list[str]:
    steady = Scene("renewals")
    with one_service((sys.executable, "-c", MOVABLE_CLOCK)) as (services, store):
        (service,) = services
        scenes = (
            steady,
            Scene("killed with -9, started again", lambda: away(service, 0)),
            Scene(f"stopped for {PAUSE_SECONDS} s", lambda: stopped(service, PAUSE_SECONDS)),
            Scene("wall clock an hour on", lambda: tell(service, signal.SIGUSR1)),
            Scene("wall clock an hour back", lambda: tell(service, signal.SIGUSR2)),
            Scene(f"down for {DOWN_SECONDS} s", lambda: away(service, DOWN_SECONDS)),
        )
        found = asyncio.run(play(services, store, False, scenes))
    with one_service() as (services, store):
        found += asyncio.run(play(services, store, True, [Scene("renewals and heartbeats of 8 ranks each")]))
    with two_replicas() as (services, store):
        killed = Scene("one of the two killed with -9", services[1].kill)
        found += asyncio.run(play(services, store, False, [Scene("renewals, two replicas on PostgreSQL"), killed]))
    return found


def run() -> str:
    """The table for benchmarks/results/agents.md."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The service inherits it: each of the two holds a connection for every agent.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    columns = (
        "what happens",
        "agents heard",
        "leases answered",
        "requests missed",
        "lease p50, ms",
        "p99, ms",
        "service, share of one core",
        "told silent",
        "judged lost",
        "commands to processes",
        "agents' own delay p99, ms",
    )
    return "\n".join(
        [
            f"# {AGENTS:,} agents\n\n{__doc__}\n",
            f"Each but the start is counted for {SECONDS} s, from when it was over. A lost node would be an incident.",
            "The agents' own delay is what this machine adds.",
            "Required: renewals under 30 % of one core, no node lost, no process touched.\n",
            f"| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}",
            *lines(),
        ]
    )
