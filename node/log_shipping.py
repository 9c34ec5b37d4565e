"""From the ranks' log files to batches in the spool, and to the terminal."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.folding import fold
from node.records import record_of
from node.spool import Spool
from node.tail import FileTail, Position

__all__ = ["BATCH_LINES", "Echo", "LogShipping", "log_files", "notice_log"]

BATCH_LINES = 4000
ECHO_SECONDS = 0.2
# New files are looked for every so many turns.
ECHO_RESCAN = 5


def log_files(logs: Path) -> list[tuple[Path, int, int]]:
    """(path, generation, rank) of every rank's log that is there, oldest generation first."""
    found = []
    for path in logs.glob("*/rank*.log"):
        generation, rank = path.parent.name, path.stem.removeprefix("rank")
        if generation.isdecimal() and rank.isdecimal():
            found.append((path, int(generation), int(rank)))
    return sorted(found, key=lambda item: (item[1], item[2]))


def notice_log(logs: Path, generation: int) -> Path:
    """Where the agent writes what it noticed by itself."""
    return logs / str(generation) / "monitor.log"


def shipped_files(logs: Path) -> list[tuple[Path, int, int | None]]:
    notices = [(path, int(path.parent.name), None) for path in sorted(logs.glob("*/monitor.log")) if path.parent.name.isdecimal()]
    return [*log_files(logs), *notices]


class LogShipping:
    """Cuts what ranks wrote into batches. A file's position moves only with the batch that holds its lines."""

    def __init__(self, spool: Spool, job: str, node: str, logs: Path, wall_clock: Callable[[], float] = time.time) -> None:
        self._spool = spool
        self._job = job
        self._node = node
        self._logs = logs
        self._wall_clock = wall_clock
        self._tails: dict[Path, FollowedFile] = {}
        self._finished: set[Path] = set()
        self.refresh()

    @property
    def last_batch(self) -> int:
        return self._spool.last_number

    def refresh(self) -> None:
        """Look for log files that are new, of this generation or left behind by an earlier agent."""
        found = shipped_files(self._logs)
        newest = max((generation for _, generation, _ in found), default=0)
        for path, generation, rank in found:
            followed = self._tails.get(path)
            if followed is None and path not in self._finished:
                tail = FileTail(path, self._spool.positions.get(str(path), Position()))
                head = {"job": self._job, "attempt": generation + 1, "node": self._node, "rank": rank, "path": str(path)}
                self._tails[path] = FollowedFile(tail, generation, rank, head)
            elif followed is not None and generation < newest and followed.tail.at_end():
                # Nobody writes into a past generation's file any more.
                del self._tails[path]
                self._finished.add(path)

    def ship(self, ended: Iterable[tuple[int, int]] = ()) -> int:
        """One batch of what was added, if anything and if there is room; the lines in it. `ended`: (generation, rank)s whose
        last line counts without a line feed. Raises OSError where the spool cannot be written; nothing moves then."""
        if self._spool.full:
            return 0
        final: set[tuple[int, int | None]] = set(ended)
        records: list[str] = []
        lines = 0
        moved: dict[Path, Position] = {}
        now = self._wall_clock()
        for path, followed in list(self._tails.items()):
            if lines >= BATCH_LINES:
                break
            before = followed.tail.position
            texts = followed.tail.read(final=(followed.generation, followed.rank) in final)
            for number, kept in fold(followed.tail.position.number - len(texts) + 1, texts):
                records.append(record_of(followed.head, now, number, kept))
                lines += len(kept)
            if followed.tail.position != before:
                moved[path] = before
            # The next batch begins with somebody else: a rank that never stops talking silences no other.
            self._tails[path] = self._tails.pop(path)
        if not moved:
            return 0
        try:
            self._spool.add(records, {str(path): self._tails[path].tail.position for path in moved})
        except OSError:
            for path, before in moved.items():
                self._tails[path].tail.position = before
            raise
        return lines

    def flush(self, ended: Iterable[tuple[int, int]]) -> None:
        """Everything that is in the files now."""
        final = list(ended)
        while self.ship(final):
            pass


@dataclass(frozen=True, slots=True)
class FollowedFile:
    """`head`: what all its records say of it."""

    tail: FileTail
    generation: int
    rank: int | None
    head: Mapping[str, Any]


class Echo:
    """Shows the ranks' lines on the terminal, each after its rank. A terminal that stands still holds nothing else up."""

    def __init__(self, start: Iterable[tuple[Path, Position]], logs: Path, out: int) -> None:
        """`out`: a file descriptor, written to past Python's buffers: who is blocked in them holds up the end of the process."""
        self._logs = logs
        self._out = out
        self._tails = {path: FileTail(path, position) for path, position in start}
        self._ranks: dict[Path, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="echo", daemon=True)
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Show the rest, for at most `seconds`."""
        self._stopping.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            turns = 0
            while not self._stopping.wait(ECHO_SECONDS):
                if turns % ECHO_RESCAN == 0:
                    self._rescan()
                turns += 1
                self._show(final=False)
            self._rescan()
            self._show(final=True)
        except OSError:
            # Whoever read our output is gone; the lines are in the files.
            return

    def _rescan(self) -> None:
        for path, _, rank in log_files(self._logs):
            self._ranks[path] = rank
            self._tails.setdefault(path, FileTail(path))

    def _show(self, final: bool) -> None:
        for path, rank in self._ranks.items():
            prefix = b"[rank%d]: " % rank
            while block := self._tails[path].read_block(final=final):
                rest = memoryview(prefix + block.removesuffix(b"\n").replace(b"\n", b"\n" + prefix) + b"\n")
                while rest:
                    rest = rest[os.write(self._out, rest) :]
