"""From the ranks' log files to batches in the spool, and to the terminal."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

from node.spool import Spool
from node.tail import FileTail, Position

__all__ = ["Echo", "LogShipping", "log_files", "notice_log"]

BATCH_LINES = 4000
ECHO_SECONDS = 0.05


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
        self._tails: dict[Path, tuple[FileTail, int, int | None]] = {}
        self.refresh()

    @property
    def last_batch(self) -> int:
        return self._spool.last_number

    def refresh(self) -> None:
        """Look for log files that are new, of this generation or left behind by an earlier agent."""
        for path, generation, rank in shipped_files(self._logs):
            if path not in self._tails:
                tail = FileTail(path, self._spool.positions.get(str(path), Position()))
                self._tails[path] = (tail, generation, rank)

    def ship(self, ended: Iterable[tuple[int, int]] = ()) -> int:
        """One batch of what was added, if anything and if there is room; the lines in it. `ended`: (generation, rank)s whose
        last line counts without a line feed. Raises OSError where the spool cannot be written; nothing moves then."""
        if self._spool.full:
            return 0
        final: set[tuple[int, int | None]] = set(ended)
        records: list[str] = []
        positions: dict[str, Position] = {}
        now = self._wall_clock()
        before = {path: tail.position for path, (tail, _, _) in self._tails.items()}
        for path, (tail, generation, rank) in self._tails.items():
            if len(records) >= BATCH_LINES:
                break
            head = {"job": self._job, "attempt": generation + 1, "node": self._node, "rank": rank, "path": str(path)}
            for line in tail.read(final=(generation, rank) in final):
                records.append(json.dumps({**head, "number": line.number, "time": now, "line": line.text}))
            if tail.position != before[path]:
                positions[str(path)] = tail.position
        if not records:
            return 0
        try:
            self._spool.add(records, positions)
        except OSError:
            for path, (tail, _, _) in self._tails.items():
                tail.position = before[path]
            raise
        return len(records)

    def flush(self, ended: Iterable[tuple[int, int]]) -> None:
        """Everything that is in the files now."""
        final = list(ended)
        while self.ship(final):
            pass


class Echo:
    """Shows the ranks' lines on the terminal, each after its rank. A terminal that stands still holds nothing else up."""

    def __init__(self, start: Iterable[tuple[Path, Position]], logs: Path, out: TextIO = sys.stdout) -> None:
        self._logs = logs
        self._out = out
        self._tails = {path: FileTail(path, position) for path, position in start}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="echo", daemon=True)
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Show the rest, for at most `seconds`."""
        self._stopping.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(ECHO_SECONDS):
                self._show(final=False)
            self._show(final=True)
        except (OSError, ValueError):
            # Whoever read our output is gone; the lines are in the files.
            return

    def _show(self, final: bool) -> None:
        for path, _, rank in log_files(self._logs):
            tail = self._tails.setdefault(path, FileTail(path))
            more = True
            while more:
                before = tail.position
                lines = [f"[rank{rank}]: {line.text}\n" for line in tail.read(final=final)]
                self._out.write("".join(lines))
                more = tail.position != before
        self._out.flush()
