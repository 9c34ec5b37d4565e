"""An evaluation run told to the service: progress for its page, failures as incidents, and slots asked back.

All of it from a thread of its own with bounded patience: a service that is away costs the run nothing but its page.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from evaluation.coordinator import RunState, progress_of
from evaluation.events import Command
from evaluation.runner import Failure
from evaluation.spec import RunSpec
from node.service_client import Refused, ServiceClient, ServiceUnavailable

__all__ = ["ServiceListener"]

PERIOD_SECONDS = 2.0
# At the end of a run its report is worth waiting for, once.
PATIENCE_SECONDS = 20.0
QUEUED = 100
LOG_LINES = 400


@dataclass(frozen=True, slots=True)
class Told:
    """One failure on its way to the service."""

    key: str
    failure: Failure
    lines: tuple[str, ...]


def say(words: str) -> None:
    print(f"pitstop: {words}", file=sys.stderr)


class ServiceListener:
    """`connect` makes the client inside the thread. `wanted_back`: nodes whose slots the service asks for."""

    def __init__(self, spec: RunSpec, connect: Callable[[], ServiceClient]) -> None:
        self.spec, self.connect = spec, connect
        self.wanted_back: frozenset[str] = frozenset()
        self.progress: dict[str, Any] | None = None
        self.failures: queue.Queue[Told] = queue.Queue(QUEUED)
        self.over = threading.Event()
        self.silent = False
        self.thread = threading.Thread(target=self.tell, name="service", daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.over.set()
        self.thread.join(PATIENCE_SECONDS)

    def hear(self, state: RunState, commands: Sequence[Command]) -> None:
        self.progress = progress_of(state)

    def failed(self, failure: Failure) -> None:
        try:
            lines = failure.log.read_text(encoding="utf-8", errors="replace").split("\n")[-LOG_LINES:]
        except OSError:
            lines = []
        try:
            self.failures.put_nowait(Told(f"{self.spec.name}-{failure.key}", failure, tuple(line for line in lines if line)))
        except queue.Full:
            say("more trials failed than the service takes: the rest is in the run's own report")

    def tell(self) -> None:
        """The thread: register, then progress every PERIOD_SECONDS and failures as they come, until the run is over and told."""
        client = self.connect()
        registered = False
        waiting: Told | None = None
        while True:
            over = self.over.wait(PERIOD_SECONDS)
            try:
                if not registered:
                    self.register(client)
                    registered = True
                if self.progress is not None:
                    answer = client.report_trials(self.spec.name, self.progress)
                    self.wanted_back = frozenset(node for node in answer.get("give_back", ()) if isinstance(node, str))
                while waiting is not None or not self.failures.empty():
                    waiting = waiting or self.failures.get_nowait()
                    self.report(client, waiting)
                    waiting = None
            except (ServiceUnavailable, Refused) as problem:
                if not self.silent:
                    self.silent = True
                    say(f"the service does not take what this run tells it ({problem}): the run goes on without it")
                if registered and over:
                    time.sleep(PERIOD_SECONDS)
                    continue
            if over:
                client.close()
                return

    def register(self, client: ServiceClient) -> None:
        nodes = sorted({slot.node for slot in self.spec.slots})
        client.register_job(
            {"job": self.spec.name, "ranks": len(self.spec.slots), "nodes": nodes, "command": ["pitstop", "trials", "run"]}
        )

    def report(self, client: ServiceClient, told: Told) -> None:
        """The end of the trial's log first, so that the incident finds its evidence."""
        place = {
            "job": self.spec.name,
            "attempt": 0,
            "node": told.failure.node,
            "path": told.failure.log.name,
            "time": time.time(),
        }
        lines = "".join(json.dumps({**place, "number": number, "line": line}) + "\n" for number, line in enumerate(told.lines, 1))
        if lines:
            client.send_logs(told.key, lines.encode("utf-8", "surrogatepass"))
        status = told.failure.status
        failed = {
            "node": told.failure.node,
            "exit_code": status if status >= 0 else None,
            "signal": -status if status < 0 else None,
            "error": f"{told.failure.kind} of {told.failure.label}: {told.failure.error}",
        }
        client.report_failure(
            self.spec.name, {"attempt": 0, "generation": 0, "idempotency_key": told.key, "failed": [failed], "last_step": None}
        )

    def ended(self, report: dict[str, Any]) -> None:
        """The report, for the run's page; once, before the thread is told that it is over."""
        self.progress = report
