"""Collectors on a node, each in a thread of its own: one that hangs silences no other, and is told as hanging."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx2

from detectors.machine import Machine, judge_machine, read_machine
from detectors.metrics import Scrape, judge_scrapes, parse_exposition

__all__ = ["Collector", "Collectors", "exporter_collector", "machine_collector"]


SCRAPE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Collector:
    """`collect` gives the lines that are new since its last call; it may block, or raise. `seconds`: between calls."""

    name: str
    collect: Callable[[], Sequence[str]]
    seconds: float = 5.0
    limit_seconds: float = 30.0


class Collectors:
    """Runs collectors. `look` gives what they found, and which of them hangs."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors = {collector.name: collector for collector in collectors}
        self._lines: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._began: dict[str, float | None] = dict.fromkeys(self._collectors)
        self._hanging: set[str] = set()
        self._problems: dict[str, str] = {}
        self._stopping = threading.Event()
        for collector in collectors:
            threading.Thread(target=self._run, args=(collector,), name=collector.name, daemon=True).start()

    def close(self) -> None:
        self._stopping.set()

    def look(self) -> list[tuple[str, str]]:
        """(collector, line) of what is new."""
        found: list[tuple[str, str]] = []
        while not self._lines.empty():
            found.append(self._lines.get())
        now = time.monotonic()
        for name, began in list(self._began.items()):
            limit = self._collectors[name].limit_seconds
            hangs = began is not None and now - began > limit
            if hangs and name not in self._hanging:
                found.append((name, f"the collector has not answered for {limit:.0f} s: what it watches is not known"))
                self._hanging.add(name)
            elif not hangs and name in self._hanging:
                found.append((name, "the collector answers again"))
                self._hanging.discard(name)
        return found

    def _run(self, collector: Collector) -> None:
        while not self._stopping.is_set():
            self._began[collector.name] = time.monotonic()
            problem = ""
            try:
                lines = collector.collect()
            except Exception as error:
                # Whatever goes wrong in one of them is told, and tried again.
                lines, problem = (), f"the collector failed: {type(error).__name__}: {error}"
            self._began[collector.name] = None
            if problem and problem != self._problems.get(collector.name):
                lines = (problem,)
            self._problems[collector.name] = problem
            for line in lines:
                self._lines.put((collector.name, line))
            self._stopping.wait(collector.seconds)


def machine_collector(read: Callable[[], Machine] = lambda: read_machine(time.monotonic())) -> Collector:
    """What the kernel shows of the machine, compared with the look before."""
    before: list[Machine] = []

    def collect() -> Sequence[str]:
        now = read()
        lines = judge_machine(before[-1], now) if before else ()
        before[:] = [now]
        return lines

    return Collector("machine", collect)


def exporter_collector(address: str) -> Collector:
    """What an exporter on this node (dcgm-exporter, node_exporter) shows, compared with the scrape before."""
    before: list[Scrape] = []

    def collect() -> Sequence[str]:
        answer = httpx2.get(address, timeout=SCRAPE_SECONDS, trust_env=False).raise_for_status()
        now = Scrape.of(time.monotonic(), parse_exposition(answer.text))
        lines = judge_scrapes(before[-1], now) if before else ()
        before[:] = [now]
        return lines

    return Collector(address, collect, 15.0)
