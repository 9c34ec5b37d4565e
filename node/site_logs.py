"""Logs of the node's own daemons (slurmd, slurmctld, a fabric manager): what is added to them is kept with the kernel's lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from node.folding import fold
from node.records import record_of
from node.spool import Spool
from node.tail import FileTail, Position

__all__ = ["SiteLogs"]


class SiteLogs:
    """Follows files that only the node's administrators write: their lines have the node's trust.

    A file that was never followed begins at its present end, with its lines counted from there; one that was, where that ended.
    """

    def __init__(self, spool: Spool, node: str, paths: Sequence[Path], wall_clock: Callable[[], float] = time.time) -> None:
        self._spool = spool
        self._head = {"node": node, "trust": "node"}
        self._wall_clock = wall_clock
        self._tails = [FileTail(path, spool.positions.get(str(path)) or end_of(path)) for path in paths]

    def ship(self) -> None:
        """A batch of what was added, if anything. Raises OSError where a file cannot be read, after the others were, or the spool
        cannot be written; what is not in a batch is read again."""
        problem: OSError | None = None
        records: list[str] = []
        before = [tail.position for tail in self._tails]
        for tail in self._tails:
            try:
                texts = tail.read()
            except OSError as error:
                problem = error
                continue
            head = {**self._head, "path": str(tail.path)}
            kept = fold(tail.position.number - len(texts) + 1, texts)
            records += [record_of(head, self._wall_clock(), number, run) for number, run in kept]
        if records:
            try:
                self._spool.add(records, {str(tail.path): tail.position for tail in self._tails})
            except OSError:
                for tail, position in zip(self._tails, before, strict=True):
                    tail.position = position
                raise
        if problem is not None:
            raise problem


def end_of(path: Path) -> Position:
    try:
        return Position(path.stat().st_size)
    except OSError:
        return Position()
