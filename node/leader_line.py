"""A follower's line to the agent that leads its job: looked for while there is none, and held until it breaks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from node.channel import Connection, dial
from node.crew import Gone
from node.job_state import JobState
from node.monitors import RankReading
from node.rank_group import Launch
from node.reforming import Marks, marks_document

__all__ = ["LeaderLine", "Lost", "Said", "beat_message", "join_message", "led_generation"]

DIAL_EVERY_SECONDS = 0.5
WELCOME_SECONDS = 2.0
# An agent that begins finds its leader within this time, where there is one.
FIND_SECONDS = 5.0


class Said:
    """The leader said `message`."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        self.message = message


class Lost:
    """The line to the leader broke."""

    def __init__(self, why: str) -> None:
        self.why = why


class LeaderLine:
    """`addresses`: where a leader may be; `join`: the message that introduces us; `heard` gets what it says, and its loss.

    An agent that follows itself closes the line without a welcome: that is no leader.
    """

    def __init__(
        self,
        addresses: Callable[[], Iterable[tuple[str, int]]],
        join: Callable[[], Mapping[str, Any]],
        beat: Callable[[], Mapping[str, Any]],
        heard: Callable[[Said | Lost], None],
    ) -> None:
        self._addresses = addresses
        self._join = join
        self._beat = beat
        self._heard = heard
        self._present: Connection | None = None
        self._stopping = threading.Event()
        self.lost_at = time.monotonic()
        self.gone: Gone | None = None

    @property
    def up(self) -> bool:
        return self._present is not None

    @property
    def leader(self) -> str | None:
        """The address of the agent that leads, while it answers."""
        connection = self._present
        return None if connection is None else connection.peer

    def is_missed(self, now: float) -> bool:
        """Whether a leader of which nothing was ever heard here is not there either: it may have died before this agent began."""
        return not self.up and self.gone is None and now - self.lost_at > FIND_SECONDS

    def start(self) -> None:
        threading.Thread(target=self._dial, name="dial", daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> bool:
        """False where no leader answers."""
        connection = self._present
        return connection is not None and connection.send(message)

    def close(self) -> None:
        self._stopping.set()
        if self._present is not None:
            self._present.close()

    def _dial(self) -> None:
        while not self._stopping.is_set():
            if self._present is None:
                for host, port in self._addresses():
                    if self._try(host, port):
                        break
            self._stopping.wait(DIAL_EVERY_SECONDS)

    def _try(self, host: str, port: int) -> bool:
        try:
            connection = dial(host, port)
        except OSError:
            return False
        settled = threading.Event()

        def message(_: Connection, said: Mapping[str, Any]) -> None:
            if said.get("op") in ("welcome", "refused"):
                self._present = connection
                self.gone = None
                settled.set()
            if said.get("op") != "beat":
                self._heard(Said(said))

        def lost(_: Connection, why: str) -> None:
            settled.set()
            if self._present is connection:
                self._present = None
                self.lost_at = time.monotonic()
                self._heard(Lost(why))

        connection.start(message, lost, self._beat)
        connection.send(self._join())
        settled.wait(WELCOME_SECONDS)
        if self._present is not connection:
            connection.close()
        return self._present is connection


def led_generation(addresses: Iterable[tuple[str, int]], job: str) -> int | None:
    """The generation under which an agent leads this job at one of `addresses` now; None where none does."""
    answers: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    for host, port in addresses:
        try:
            connection = dial(host, port)
        except OSError:
            continue
        connection.start(
            lambda _, said: answers.put(int(said["generation"]) if said.get("op") == "welcome" else None),
            lambda _, __: answers.put(None),
        )
        connection.send({"op": "ask", "job": job})
        try:
            found = answers.get(timeout=WELCOME_SECONDS)
        except queue.Empty:
            found = None
        connection.close()
        if found is not None:
            return found
    return None


def join_message(launch: Launch, state: JobState, port: int, marks: Marks) -> dict[str, Any]:
    """What introduces a follower, and tells what became of its ranks meanwhile. `port`: where it listens itself."""
    care = state.care
    return {
        "op": "join",
        "job": launch.job,
        "node": launch.node,
        "ranks": launch.ranks,
        "order": launch.order,
        "port": port,
        "generation": care.generation if care.formed else -1,
        "formation": asdict(state.formation) if care.formed and state.formation is not None else None,
        "running": sorted(care.running),
        "exits": [asdict(item) for item in care.exits],
        **marks_document(marks),
    }


def beat_message(generation: int, readings: Iterable[RankReading], marks: Marks) -> dict[str, Any]:
    """The last step, the newest checkpoint that every rank here has finished, and the ranks' marks."""
    items = list(readings)
    steps = [reading.step for reading in items if reading.step is not None]
    saved = [reading.progress.checkpointed for reading in items if reading.progress is not None]
    saved = saved if len(saved) == len(items) and all(step >= 0 for step in saved) else []
    return {
        "op": "beat",
        "generation": generation,
        "step": max(steps, default=None),
        "checkpointed": min(saved, default=None),
        **marks_document(marks),
    }
