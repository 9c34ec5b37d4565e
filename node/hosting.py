"""Staged checkpoints in this node's memory: the folder that ranks stage into, and the process that makes it durable.

The folder belongs to the agent, so that it outlives every rank; the process (`pitstop.checkpoint.host`, under the job's
interpreter) is started by the keeper once a rank asks for it, so that it outlives the agent too, and started again where it died.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from detectors.processes import ProcessId, is_running
from node.keeper_client import KeeperClient, KeeperError
from node.sdk_process import program_of
from pitstop import protocol

__all__ = ["Hosting"]

SOCKET = "host.sock"
ATTACHED = ".attached"
RETRY_SECONDS = 5.0
# The end of a job waits this long for its last state to reach the disk.
PERSIST_SECONDS = 300.0
ASK_SECONDS = 2.0
END_SECONDS = 10.0
POLL_SECONDS = 0.05


class Hosting:
    """Of one job. Nothing is started or kept for a job that stages nothing. `host`: where other nodes reach this one."""

    def __init__(self, staging: Path, folder: Path, python: str | None, host: str, say: Callable[[str], None]) -> None:
        self.staging = staging
        self._folder = folder
        self._python = python
        self._host = host
        self._say = say
        self._not_before = 0.0

    @property
    def is_used(self) -> bool:
        try:
            with os.scandir(self.staging) as found:
                return any(entry.name.endswith(ATTACHED) for entry in found)
        except OSError:
            return False

    def look(self, keeper: KeeperClient, present: ProcessId | None) -> ProcessId | None:
        """The host process, started where a rank waits for one and none runs."""
        if not self.is_used or (present is not None and is_running(present)) or time.monotonic() < self._not_before:
            return present
        self._not_before = time.monotonic() + RETRY_SECONDS
        if present is not None:
            self._say("the process that holds staged checkpoints has died; it is started again")
        if self._python is None:
            self._say("no Python on the job's PATH: staged checkpoints stay in memory")
            return None
        environment = {key: value for key, value in os.environ.items() if key != "PITSTOP_TOKEN_FILE"}
        arguments = [self._python, "-c", program_of("pitstop.checkpoint.host"), str(self.staging), "--listen", self._host]
        try:
            return keeper.spawn({"host": True}, arguments, environment, str(Path.cwd()), self._folder / "host.log")
        except KeeperError as problem:
            self._say(f"staged checkpoints stay in memory: {problem}")
            return None

    def status(self) -> Mapping[str, Any]:
        """What the host knows: complete checkpoints on disk among it; empty where it does not answer."""
        if not self.is_used:
            return {}
        with contextlib.suppress(OSError, ValueError):
            return protocol.exchange(str(self.staging / SOCKET), {"op": "status"}, ASK_SECONDS)
        return {}

    def finish(self, keeper: KeeperClient | None, present: ProcessId | None) -> None:
        """The job is over: what it staged last goes to disk, and the memory is given back once it is there."""
        if not self.is_used:
            return
        deadline = time.monotonic() + PERSIST_SECONDS
        failed = ""
        while time.monotonic() < deadline and not failed:
            if keeper is not None and not keeper.lost:
                present = self.look(keeper, present)
            if present is None or not is_running(present):
                failed = "no process holds it"
                continue
            with contextlib.suppress(OSError, ValueError):
                if self._drain(deadline - time.monotonic()):
                    self._give_back(present)
                    return
                failed = "; ".join(self.status().get("errors", ())[-1:]) or "it took too long"
            time.sleep(POLL_SECONDS)
        self._say(f"what was staged last is not on disk ({failed or 'no answer'}); it stays in {self.staging}")

    def _give_back(self, host: ProcessId) -> None:
        """Remove the folder once its host has ended: until then it may write the seal of what is on disk already."""
        deadline = time.monotonic() + END_SECONDS
        while is_running(host) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        shutil.rmtree(self.staging, ignore_errors=True)

    def _drain(self, seconds: float) -> bool:
        """Raises OSError, ValueError while the host does not answer."""
        path = str(self.staging / SOCKET)
        answer = protocol.exchange(path, {"op": "drain", "seconds": seconds}, seconds + ASK_SECONDS)
        if answer.get("ok"):
            protocol.exchange(path, {"op": "end"}, ASK_SECONDS)
        return bool(answer.get("ok"))
