"""The agent's side of the keeper, and the process-group store that the keeper runs beside the ranks."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detectors.processes import ProcessId, identify
from node.keeper import EXITS, SOCKET
from node.sdk_process import program_of
from pitstop import protocol

__all__ = ["STORE_SOCKET", "KeeperClient", "KeeperError", "OpenedStore", "open_store", "recorded_exits"]

START_SECONDS = 20.0
ANSWER_SECONDS = 10.0
STORE_SOCKET = "store.sock"


class KeeperError(Exception):
    """The keeper is gone, or could not do what it was asked; the message says what."""


class KeeperClient:
    """One connection to a job's keeper. Exits come from a thread of its own."""

    def __init__(
        self, connection: socket.socket, process: ProcessId | None, on_exit: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self.process = process
        self.lost = False
        self._connection = connection
        self._on_exit = on_exit
        self._numbers = itertools.count(1)
        self._answers: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        connection.settimeout(None)
        threading.Thread(target=self._read, name="keeper", daemon=True).start()

    @classmethod
    def connect(
        cls, folder: Path, process: ProcessId | None, on_exit: Callable[[Mapping[str, Any]], None]
    ) -> KeeperClient | None:
        """The keeper that runs already; None when there is none."""
        try:
            return cls(protocol.connect(str(folder / SOCKET), ANSWER_SECONDS), process, on_exit)
        except OSError:
            return None

    @classmethod
    def start(cls, folder: Path, on_exit: Callable[[Mapping[str, Any]], None]) -> KeeperClient:
        """Start a keeper in a session of its own. Raises KeeperError when it does not come up."""
        house = Path(__file__).resolve().parent.parent
        sdk = Path(protocol.__file__).resolve().parent.parent
        # -I and an explicit path: neither PYTHONPATH nor the working directory may put other people's modules before ours.
        code = f"import sys; sys.path[:0] = [{str(house)!r}, {str(sdk)!r}]; from node.keeper import main; main()"
        with (folder / "keeper.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            found = cls.connect(folder, identify(process.pid), on_exit)
            if found is not None:
                found._popen = process
                return found
            time.sleep(0.005)
        raise KeeperError(f"the keeper of the ranks did not start; see {folder / 'keeper.log'}")

    _popen: subprocess.Popen[bytes] | None = None

    def spawn(
        self,
        label: Mapping[str, Any],
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        output: Path,
        spare: tuple[Path, Sequence[str]] | None = None,
    ) -> ProcessId:
        """Start one process in a session of its own. Raises KeeperError, with what the system said.

        `spare`: the socket of a warm spare, and the script with its arguments, for one that can be forked from it.
        """
        message = {"op": "spawn", "label": dict(label), "argv": list(argv), "env": dict(env), "cwd": cwd, "output": str(output)}
        if spare is not None:
            message |= {"spare": str(spare[0]), "script": list(spare[1])}
        answer = self._ask(message)
        return ProcessId(answer["pid"], answer["started"])

    def kill(self, processes: Iterable[ProcessId], number: int) -> None:
        """Signal processes that still run, each with its process group."""
        self._ask({"op": "kill", "pids": [process.pid for process in processes], "signal": number})

    def sweep(self) -> None:
        """Kill what outlived its rank."""
        self._ask({"op": "sweep"})

    def running(self) -> frozenset[ProcessId]:
        return frozenset(ProcessId(pid, started) for pid, started in self._ask({"op": "list"})["running"])

    def close(self) -> None:
        """Leave the keeper to itself: it ends once nothing runs any more."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        if self._popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(ANSWER_SECONDS)

    def _ask(self, message: dict[str, Any]) -> Mapping[str, Any]:
        number = next(self._numbers)
        try:
            self._connection.sendall(json.dumps({"n": number, **message}).encode() + b"\n")
            while True:
                answer = self._answers.get(timeout=ANSWER_SECONDS)
                if answer is None:
                    raise KeeperError("the keeper of the ranks is gone")
                if answer.get("n") == number:
                    break
        except (OSError, queue.Empty) as problem:
            raise KeeperError(f"the keeper of the ranks does not answer: {problem!r}") from None
        if not answer.get("ok"):
            raise KeeperError(str(answer.get("error")))
        return answer

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._connection.makefile("rb") as lines:
            for line in lines:
                document = json.loads(line)
                if "exit" in document:
                    self._on_exit(document["exit"])
                else:
                    self._answers.put(document)
        self.lost = True
        self._answers.put(None)


def recorded_exits(folder: Path) -> dict[ProcessId, Mapping[str, Any]]:
    """Every exit that keepers of this job wrote down; a torn last line is no record."""
    found: dict[ProcessId, Mapping[str, Any]] = {}
    try:
        text = (folder / EXITS).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return found
    for line in text.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            record = json.loads(line)
            found[ProcessId(record["pid"], record["started"])] = record
    return found


class OpenedStore:
    """The store process, with the port of the generation that it serves."""

    def __init__(self, process: ProcessId, host: str, port: int) -> None:
        self.process = process
        self.host = host
        self.port = port


def open_store(
    folder: Path,
    keeper: KeeperClient,
    python: str,
    env: Mapping[str, str],
    cwd: str,
    present: ProcessId | None,
    generation: int,
    host: str,
) -> OpenedStore:
    """A store for `generation`, in the process that runs already or in a new one.

    Raises KeeperError where there can be none: no such interpreter, or no torch in it.
    """
    path = folder / STORE_SOCKET
    message = {"op": "open", "generation": generation, "host": host}
    answer: Mapping[str, Any] | None = None
    if present is not None:
        with contextlib.suppress(OSError, ValueError):
            answer = protocol.exchange(str(path), message)
    if present is None or answer is None:
        if present is not None:
            keeper.kill([present], signal.SIGKILL)
        path.unlink(missing_ok=True)
        words = [python, "-c", program_of("pitstop.store"), str(path)]
        present = keeper.spawn({"store": True}, words, env, cwd, folder / "store.log")
        answer = first_answer(path, message, present, folder / "store.log")
    if not answer.get("ok"):
        keeper.kill([present], signal.SIGKILL)
        raise KeeperError(str(answer.get("error")))
    return OpenedStore(present, host, int(answer["port"]))


def first_answer(path: Path, message: dict[str, Any], process: ProcessId, log: Path) -> Mapping[str, Any]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and identify(process.pid) == process:
        with contextlib.suppress(OSError, ValueError):
            return protocol.exchange(str(path), message)
        time.sleep(0.01)
    raise KeeperError(f"the store process did not start; see {log}")


def watch_ranks(folder: Path, processes: Iterable[ProcessId]) -> None:
    """Tell the store which processes keep it alive: the ranks and this agent."""
    agent = identify(os.getpid())
    watched = [[process.pid, process.started] for process in (*processes, *([agent] if agent else []))]
    with contextlib.suppress(OSError, ValueError):
        protocol.exchange(str(folder / STORE_SOCKET), {"op": "watch", "processes": watched})
