"""The keeper of a job's processes on one node: their parent, so that no exit status is lost when the agent dies.

Started by the agent in a session of its own. It spawns what it is told to, records how each process ended in `exits.jsonl` before
anybody is told, kills what a dead rank left behind, and ends when nothing runs any more and no agent is connected.
It decides nothing. Messages are one JSON object a line over a Unix socket in the job's state directory:

    {"n": 1, "op": "spawn", "label": {...}, "argv": [...], "env": {...}, "cwd": "...", "output": "path"}
                                                         -> {"n": 1, "ok": true, "pid", "started"}
         "spare": "path" beside them: a warm spare at that socket forks the process where it can (pitstop.spare)
    {"n": 2, "op": "kill", "pids": [...], "signal": 9}   -> {"n": 2, "ok": true}      each with its process group
    {"n": 3, "op": "sweep"}                               -> {"n": 3, "ok": true}      kill strays whose rank is gone
    {"n": 4, "op": "list"}                                -> {"n": 4, "ok": true, "running": [[pid, started], ...]}
    every exit, to every connected agent                 <- {"exit": {"label", "pid", "started", "code", "signal", "time"}}

    python -m node.keeper DIRECTORY
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from detectors.processes import Ended, adopt_orphans, children, ended_children, identify, reap, signal_group
from pitstop import protocol

__all__ = ["EXITS", "SOCKET", "Keeper", "main"]

SOCKET = "keeper.sock"
EXITS = "exits.jsonl"
# An agent that started us connects at once; if it died before that, nobody will.
FIRST_CLIENT_SECONDS = 30.0
# A spare forks within milliseconds; one that does not answer is not waited for.
SPARE_SECONDS = 1.0


class Keeper:
    """The processes and what is known of them."""

    def __init__(self, folder: Path) -> None:
        self._exits = (folder / EXITS).open("ab", buffering=0)
        # Each Popen is kept: subprocess reaps, unasked, those that are garbage.
        self._running: dict[int, tuple[subprocess.Popen[bytes] | None, dict[str, Any], int]] = {}

    @property
    def busy(self) -> bool:
        """Whether anything runs that is worth staying for; a warm spare is not."""
        return any(not label.get("spare") for _, label, _ in self._running.values())

    def end_spares(self) -> None:
        for pid, (_, label, _) in self._running.items():
            if label.get("spare"):
                signal_group(pid, signal.SIGKILL)

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Carry one message out. Never raises on what a peer sends."""
        result: dict[str, Any] = {"n": message.get("n"), "ok": True}
        try:
            match message.get("op"):
                case "spawn":
                    result |= self._spawn(message)
                case "kill":
                    for pid in message["pids"]:
                        if pid in self._running:
                            signal_group(pid, int(message["signal"]))
                case "sweep":
                    self._sweep()
                case "list":
                    result["running"] = [[pid, started] for pid, (_, _, started) in self._running.items()]
                case other:
                    raise ValueError(f"no operation {other!r}")
        except (KeyError, TypeError, ValueError, OSError, subprocess.SubprocessError) as problem:
            return {"n": message.get("n"), "ok": False, "error": f"{type(problem).__name__}: {problem}"}
        return result

    def _spawn(self, message: dict[str, Any]) -> dict[str, Any]:
        if message.get("spare"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                return self._fork(message)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        output = os.open(message["output"], flags, 0o600)
        try:
            process = subprocess.Popen(
                [str(word) for word in message["argv"]],
                env=message["env"],
                cwd=message["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        finally:
            os.close(output)
        # It cannot be reaped by anyone but us, so that its start time is its own.
        identity = identify(process.pid)
        started = identity.started if identity else 0
        self._running[process.pid] = (process, dict(message["label"]), started)
        return {"pid": process.pid, "started": started}

    def _fork(self, message: dict[str, Any]) -> dict[str, Any]:
        """As `_spawn`, by the spare. Raises OSError, ValueError, KeyError where it cannot."""
        words = {"op": "spawn", "argv": message["script"], "env": message["env"], "cwd": message["cwd"]}
        pid = int(protocol.exchange(message["spare"], {**words, "output": message["output"]}, SPARE_SECONDS)["pid"])
        identity = identify(pid)
        started = identity.started if identity else 0
        self._running[pid] = (None, dict(message["label"]), started)
        return {"pid": pid, "started": started, "warm": True}

    def collect(self) -> list[dict[str, Any]]:
        """Record the processes that ended since the last call; a failed leader's group is killed while its pid is still ours."""
        records = []
        for ended in ended_children():
            entry = self._running.pop(ended.pid, None)
            if entry is None:
                reap(ended.pid)
                continue
            process, label, started = entry
            records.append(self._record(ended, label, started))
            signal_group(ended.pid, signal.SIGTERM if ended.code == 0 else signal.SIGKILL)
            reap(ended.pid)
            if process is not None:
                process.returncode = ended.code if ended.code is not None else -(ended.signal or 0)
        return records

    def _record(self, ended: Ended, label: dict[str, Any], started: int) -> dict[str, Any]:
        record = {
            "label": label,
            "pid": ended.pid,
            "started": started,
            "code": ended.code,
            "signal": ended.signal,
            "time": time.time(),
        }
        # A full disk loses the record for a later agent, not for the present one.
        with contextlib.suppress(OSError):
            self._exits.write(json.dumps(record).encode() + b"\n")
        return record

    def _sweep(self) -> None:
        for pid in children() - set(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Conversations:
    """The connected agents; a slow or silent one never holds the keeper up."""

    def __init__(self, server: socket.socket, keeper: Keeper) -> None:
        self._server = server
        self._keeper = keeper
        self._buffers: dict[socket.socket, bytearray] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(server, selectors.EVENT_READ)

    @property
    def any(self) -> bool:
        return bool(self._buffers)

    def accept(self) -> None:
        client, _ = self._server.accept()
        client.settimeout(1.0)
        self._buffers[client] = bytearray()
        self.selector.register(client, selectors.EVENT_READ)

    def read(self, client: socket.socket) -> None:
        buffer = self._buffers.get(client)
        if buffer is None:
            return
        try:
            part = client.recv(1 << 16)
        except OSError:
            part = b""
        buffer += part
        while b"\n" in buffer:
            line, _, rest = bytes(buffer).partition(b"\n")
            buffer[:] = rest
            try:
                message = json.loads(line)
            except ValueError:
                message = {}
            self.send(client, self._keeper.answer(message if isinstance(message, dict) else {}))
        if not part:
            self.drop(client)

    def send(self, client: socket.socket, document: dict[str, Any]) -> None:
        try:
            client.sendall(json.dumps(document).encode() + b"\n")
        except OSError:
            self.drop(client)

    def broadcast(self, document: dict[str, Any]) -> None:
        for client in list(self._buffers):
            self.send(client, document)

    def drop(self, client: socket.socket) -> None:
        if self._buffers.pop(client, None) is not None:
            self.selector.unregister(client)
            client.close()


def run(folder: Path) -> None:
    """Keep the processes of the job whose state directory is `folder`."""
    adopt_orphans()
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # Handlers, not SIG_IGN: a handler is not inherited by what we start. The ranks hear of signals from the agent.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    keeper = Keeper(folder)
    server = protocol.listen(str(folder / SOCKET))
    conversations = Conversations(server, keeper)
    conversations.selector.register(reader, selectors.EVENT_READ)
    deadline = time.monotonic() + FIRST_CLIENT_SECONDS
    try:
        while keeper.busy or conversations.any or time.monotonic() < deadline:
            for key, _ in conversations.selector.select(1.0):
                if key.fileobj is server:
                    conversations.accept()
                    deadline = 0.0
                elif key.fileobj == reader:
                    with contextlib.suppress(BlockingIOError):
                        os.read(reader, 4096)
                elif isinstance(key.fileobj, socket.socket):
                    conversations.read(key.fileobj)
            for record in keeper.collect():
                conversations.broadcast({"exit": record})
    finally:
        keeper.end_spares()
        keeper.answer({"op": "sweep"})
        server.close()
        with contextlib.suppress(FileNotFoundError):
            (folder / SOCKET).unlink()


def main() -> None:
    run(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
