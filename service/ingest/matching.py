"""Matcher processes: whatever computes over log text runs in them, never in the process that serves requests.

Each process is fed by one thread over a pipe; the thread sleeps while the process works. A process that dies takes the one body
with it that it was working on, and is replaced.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import queue
import select
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from rules.artefact import load_compiled
from rules.matcher import Matcher
from rules.pack import PACK_FOLDER, Rule
from rules.redaction import Redactor, redactor
from service.ingest.preparation import Filter, Preparer

__all__ = ["Learnt", "MatcherDied", "MatcherPool", "Overloaded", "Tools"]

log = logging.getLogger("pitstop.service")

TASK_TIMEOUT_SECONDS = 120.0

Result = TypeVar("Result")


class Overloaded(RuntimeError):
    """More is waiting than the limit allows: to be answered with 503 and Retry-After."""


class MatcherDied(RuntimeError):
    """The process that worked on this ended; nothing of it was stored."""


@dataclass(slots=True)
class Tools:
    """What a matcher process holds. `learnt`: the learnt rules in use, see service/learnt_rules.py."""

    matcher: Matcher
    redactor: Redactor
    preparer: Preparer
    learnt: Matcher = field(default_factory=lambda: Matcher(()))


@dataclass(frozen=True, slots=True)
class Learnt:
    """The learnt rules in use: those that name causes, and filters."""

    rules: tuple[Rule, ...] = ()
    filters: tuple[Filter, ...] = ()


def adopt(tools: Tools, learnt: Learnt) -> None:
    """Use these learnt rules from now on. Raises PackError."""
    tools.learnt = Matcher(learnt.rules)
    tools.preparer.learn(learnt.filters, tools.learnt)


@dataclass(slots=True)
class Task:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    size: int
    future: Future[Any] = field(default_factory=Future)


def work(connection: Connection, rules_folder: Path) -> None:
    """The life of a matcher process: one task after another until the pipe closes."""
    # Only the service decides when to end: Ctrl-C in a terminal reaches the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    compiled = load_compiled(rules_folder)
    matcher = compiled.matcher()
    tools = Tools(matcher, redactor(), Preparer(matcher, compiled.shapes, redactor()))
    connection.send_bytes(b"ready")
    while True:
        try:
            function, arguments = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            answer = (True, function(tools, *arguments))
        except Exception as error:
            answer = (False, error)
        try:
            connection.send_bytes(pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))
        except OSError:
            return


def call(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Whether `function` succeeded in the process at the other end, and what it returned or raised. Raises EOFError, OSError."""
    connection.send_bytes(pickle.dumps((function, arguments), protocol=pickle.HIGHEST_PROTOCOL))
    # Not connection.poll, which builds a selector for every call.
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    if not waiting.poll(TASK_TIMEOUT_SECONDS * 1000):
        raise EOFError
    succeeded, value = pickle.loads(connection.recv_bytes())
    return bool(succeeded), value


class MatcherPool:
    """Runs `function(tools, *arguments)` in one of `processes` spawned processes; both must be importable and picklable."""

    def __init__(self, processes: int, max_waiting_bytes: int, rules_folder: Path = PACK_FOLDER) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._rules_folder = rules_folder
        self._max_waiting_bytes = max_waiting_bytes
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closing = False
        self._alive = 0
        self.waiting_bytes = 0
        self.learnt = Learnt()
        self._threads = [
            threading.Thread(target=self._feed, name=f"matcher-{number}", daemon=True) for number in range(processes)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, size: int, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """`size`: bytes that wait meanwhile. Raises Overloaded; the future raises MatcherDied or what `function` raised."""
        with self._lock:
            if self._closing or (self.waiting_bytes and self.waiting_bytes + size > self._max_waiting_bytes):
                raise Overloaded("more is waiting than Pitstop can hold: send it again in a moment")
            self.waiting_bytes += size
        task = Task(function, arguments, size)
        self._tasks.put(task)
        return task.future

    def learn(self, learnt: Learnt) -> None:
        """Let every process use these learnt rules from its next task on, also those that replace others."""
        self.learnt = learnt

    def check(self) -> str:
        """`ok`, or what is wrong, for /readyz."""
        return "ok" if self._alive else "no matcher process is ready yet"

    def close(self) -> None:
        """Finish what is being worked on, refuse the rest."""
        with self._lock:
            self._closing = True
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def _feed(self) -> None:
        process, connection = self._start()
        task: Task | None = None
        adopted = Learnt()
        while (task := self._tasks.get()) is not None:
            if self._closing:
                self._finish(task, MatcherDied("the service is ending"))
                continue
            try:
                if adopted != (learnt := self.learnt):
                    call(connection, adopt, (learnt,))
                    adopted = learnt
                succeeded, value = call(connection, task.function, task.arguments)
            except (EOFError, OSError):
                log.error("a matcher process (pid %s) ended or hung; it is replaced", process.pid)
                self._alive -= 1
                self._stop(process, connection)
                self._finish(task, MatcherDied("the process that worked on this ended: send it again"))
                process, connection = self._start()
                adopted = Learnt()
                continue
            self._finish(task, None if succeeded else value, value)
        self._stop(process, connection)

    def _start(self) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        while True:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=work, args=(theirs, self._rules_folder), name="pitstop-matcher", daemon=True)
            process.start()
            # Held open here, the other end would never report the death of its process.
            theirs.close()
            try:
                ours.recv_bytes()
            except (EOFError, OSError):
                if self._closing:
                    return process, ours
                log.error("a matcher process could not start; trying again")
                self._stop(process, ours)
                threading.Event().wait(1.0)
                continue
            self._alive += 1
            return process, ours

    @staticmethod
    def _stop(process: multiprocessing.process.BaseProcess, connection: Connection) -> None:
        connection.close()
        process.join(timeout=2)
        if process.is_alive():
            process.kill()
            process.join()

    def _finish(self, task: Task, error: BaseException | None, value: Any = None) -> None:
        with self._lock:
            self.waiting_bytes -= task.size
        # A caller that went away has cancelled its future.
        if task.future.set_running_or_notify_cancel():
            if error is not None:
                task.future.set_exception(error)
            else:
                task.future.set_result(value)
