"""Batches of log lines on disk until the service has them: nothing lost, nothing doubled, whoever is killed.

A batch file holds its id, the positions in the followed files that it reaches, and its body. Writing the file is what commits the
positions: a later agent starts behind the newest batch that it finds. When the service has acknowledged a batch, the positions
move to `positions.json`, and then the file goes. A batch that was sent but not acknowledged is sent again under the same id.

The spool is bounded. When it is full nothing is dropped: the lines stay in the ranks' own files until there is room.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from node.job_state import write_atomically
from node.tail import Position

__all__ = ["Batch", "Spool"]

MAX_SPOOL_BYTES = 64 << 20
DAMAGED = (ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class Batch:
    """`body` is NDJSON, one line an object; `number` orders batches."""

    number: int
    id: str
    positions: Mapping[str, Position]
    body: bytes


class Spool:
    """Batches of one job, oldest first. One process uses a folder at a time; one thread adds, one removes.

    `added` is set with every new batch; who waits for it clears it.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_SPOOL_BYTES) -> None:
        """Raises OSError where the folder cannot be read."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._positions_file = folder / "positions.json"
        self._sizes: dict[int, int] = {}
        self.added = threading.Event()
        self._acknowledged: dict[str, Position] = {}
        # After a power failure files may be empty. What they held is read again from the ranks' own files.
        with contextlib.suppress(FileNotFoundError, *DAMAGED):
            self._acknowledged = decode_positions(json.loads(self._positions_file.read_text(encoding="utf-8")))
        self.positions: dict[str, Position] = dict(self._acknowledged)
        for path in sorted(folder.glob("*.batch")):
            try:
                batch = self._read(int(path.stem))
            except DAMAGED:
                path.unlink()
                continue
            self._sizes[batch.number] = path.stat().st_size
            self.positions.update(batch.positions)
        self._next = max(self._sizes, default=0) + 1

    @property
    def full(self) -> bool:
        return sum(self._sizes.copy().values()) >= self._max_bytes

    @property
    def last_number(self) -> int:
        return self._next - 1

    @property
    def first_number(self) -> int | None:
        """Of the oldest batch that waits; from any thread."""
        return min(self._sizes.copy(), default=None)

    def oldest(self) -> Batch | None:
        """The next batch to send; for the thread that acknowledges it: to others its file may be gone."""
        number = self.first_number
        return None if number is None else self._read(number)

    def pending_after(self, number: int) -> bool:
        """Whether a batch up to `number` still waits."""
        return any(waiting <= number for waiting in self._sizes.copy())

    def add(self, records: Iterable[str], positions: Mapping[str, Position]) -> Batch:
        """Commit one batch: its records (JSON objects) and how far they reach. Raises OSError; nothing is committed then."""
        batch = Batch(self._next, uuid.uuid4().hex, dict(positions), ("\n".join(records) + "\n").encode())
        header = json.dumps({"id": batch.id, "positions": encode_positions(batch.positions)})
        write_atomically(self._path(batch.number), header.encode() + b"\n" + batch.body, durable=False)
        self._next += 1
        self._sizes[batch.number] = len(header) + len(batch.body)
        self.positions.update(batch.positions)
        self.added.set()
        return batch

    def acknowledge(self, batch: Batch) -> None:
        """The service has `batch`: forget it. Raises OSError; the batch is then sent again, under the same id."""
        self._acknowledged.update(batch.positions)
        write_atomically(self._positions_file, json.dumps(encode_positions(self._acknowledged)).encode(), durable=False)
        self._path(batch.number).unlink(missing_ok=True)
        self._sizes.pop(batch.number, None)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012d}.batch"

    def _read(self, number: int) -> Batch:
        header, _, body = self._path(number).read_bytes().partition(b"\n")
        document = json.loads(header)
        return Batch(number, document["id"], decode_positions(document["positions"]), body)


def encode_positions(positions: Mapping[str, Position]) -> dict[str, list[int]]:
    return {path: [position.offset, position.number] for path, position in positions.items()}


def decode_positions(document: Mapping[str, list[int]]) -> dict[str, Position]:
    return {path: Position(offset, number) for path, (offset, number) in document.items()}
