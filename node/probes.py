"""The warm probe worker of a node: a process under the job's interpreter, held by the agent, that takes part in localisation."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from node.sdk_process import program_of

__all__ = ["ProbeWorker", "address_towards"]

# A worker that does not answer this long after the limit of a probe hangs itself: it is killed and started again.
ANSWER_SECONDS = 1.0
# Between two starts of a worker that did not come up, doubled each time.
RESTART_SECONDS, RESTART_DOUBLINGS = 5.0, 6
VOID, ERROR = "void", "error"


def address_towards(service: str) -> str:
    """The address that packets to the service leave from: others reach this machine there. Raises OSError without a route."""
    parts = urlsplit(service)
    family, _, _, _, place = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


class ProbeWorker:
    """Starts the worker, asks it one probe at a time, and ends it when it hangs. `address`: where other nodes reach this one."""

    def __init__(self, python: str, address: str, say: Callable[[str], None]) -> None:
        self.address = address
        self.backend: str | None = None
        self._python = python
        self._say = say
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._port: int | None = None
        self._next_start = float("-inf")
        self._vain_starts = 0
        self._lock = threading.Lock()

    def keep_warm(self) -> None:
        """Start the worker where none runs; returns at once. To be called now and then."""
        if self._lock.acquire(blocking=False):
            try:
                self._ready(0.0)
            finally:
                self._lock.release()

    def run(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Carry one probe out; what CommandResult takes as `probe`. Never longer than its limit and a moment."""
        began = time.monotonic()
        with self._lock:
            answer = self._ask(dict(args), float(args.get("seconds") or 0.0))
            return {**answer, "took": time.monotonic() - began, "host": self.address, "port": self._port}

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            kill(process)

    def _ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds + ANSWER_SECONDS
        if not self._ready(deadline - time.monotonic()):
            return {"outcome": VOID, "seconds": 0.0, "error": "the probe worker is not up yet"}
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            while True:
                answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
                if answer is None or answer.get("id") == message.get("id"):
                    break
        except queue.Empty:
            self._say("the probe worker does not answer: it is killed and started again")
            self._drop()
            return {"outcome": ERROR, "seconds": seconds, "error": "the probe worker of the node did not answer"}
        except OSError:
            answer = None
        if answer is None:
            self._drop()
            return {"outcome": VOID, "seconds": 0.0, "error": "the probe worker was killed"}
        self._port = int(answer["port"])
        return {name: answer[name] for name in ("outcome", "seconds", "error")}

    def _drop(self) -> None:
        self.close()
        self._start()

    def _ready(self, seconds: float) -> bool:
        """Whether a worker is up, or is within `seconds`."""
        deadline = time.monotonic() + seconds
        if self._process is None or self._process.poll() is not None:
            if time.monotonic() < self._next_start:
                return False
            self.close()
            self._start()
        while self._port is None:
            try:
                first = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return False
            if first is None:
                if not self._vain_starts:
                    self._say(f"this node offers no probes: {self._python} runs no probe worker (is torch there? --python)")
                self._next_start = time.monotonic() + RESTART_SECONDS * 2 ** min(self._vain_starts, RESTART_DOUBLINGS)
                self._vain_starts += 1
                self.backend = None
                self.close()
                return False
            if first.get("ready"):
                self._port, self.backend, self._vain_starts = int(first["port"]), str(first["backend"]), 0
        return True

    def _start(self) -> None:
        self._port = None
        self._answers = queue.SimpleQueue()
        try:
            self._process = subprocess.Popen(
                [self._python, "-c", program_of("pitstop.probe"), self.address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd="/",
                start_new_session=True,
            )
        except OSError as problem:
            self._say(f"the probe worker cannot be started: {problem}")
            self._next_start = time.monotonic() + RESTART_SECONDS * 2**RESTART_DOUBLINGS
            return
        threading.Thread(target=read_answers, args=(self._process, self._answers), daemon=True).start()


def read_answers(process: subprocess.Popen[str], answers: queue.SimpleQueue[Mapping[str, Any] | None]) -> None:
    assert process.stdout is not None
    with contextlib.suppress(OSError, ValueError):
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                document = json.loads(line)
                if isinstance(document, dict):
                    answers.put(document)
    answers.put(None)


def kill(process: subprocess.Popen[str]) -> None:
    """End a worker with the ranks that it forked: it runs in a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
