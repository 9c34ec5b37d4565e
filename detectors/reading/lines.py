"""The lines of one source as text with rank, node, time and trust, made only for lines that matter."""

from __future__ import annotations

import json

from detectors.reading.text import line_text, origin_of_path, origin_of_text, quick_prefix
from detectors.reading.timestamps import Stamps
from rules.signal import Line, Trust

__all__ = ["LineMaker", "journal_entry"]

MICROSECONDS = 1e6


class LineMaker:
    """Remembers what earlier lines of its source told: which global rank stands behind a local one."""

    def __init__(self, path: str, stamps: Stamps, trust: Trust = Trust.JOB, journal: bool = False) -> None:
        self.path = path
        self._stamps = stamps
        self._trust = trust
        self.is_journal = journal
        self._of_path = origin_of_path(path)
        self._global: dict[int, int] = {}
        # With files of one rank each, a prefix inside tells who reports.
        self._entry: tuple[bytes, Line | None] = (b"", None)
        self._path_rank = self._of_path.rank if self._of_path.rank is not None else self._of_path.local

    def rank(self, raw: bytes) -> int | None:
        """The rank that wrote `raw`, as far as its first bytes or the path tell; much cheaper than `make`."""
        if not raw:
            return self._path_rank
        local, rank = quick_prefix(raw)
        return self.resolve(rank, local)

    def text(self, raw: bytes) -> str:
        """What `raw` says: of a journal's entry its message, else the line itself."""
        entry = self._entry_of(raw)
        return line_text(raw) if entry is None else entry.text

    def origin(self, text: str, raw: bytes) -> tuple[int | None, str | None, str]:
        """Rank and node of a line, and its text after its prefixes."""
        origin, rest = origin_of_text(text)
        entry = self._entry_of(raw)
        node = origin.node if entry is None else entry.node
        return self.resolve(origin.rank, origin.local), node or self._of_path.node, rest

    def time(self, text: str) -> float | None:
        """The stamp in `text`, seconds since the epoch; one from the future counts as none."""
        return self._stamps.read(text)

    def make(self, raw: bytes, number: int, text: str | None = None) -> Line:
        """The line; `text` where it is known already."""
        if text is None:
            text = self.text(raw)
        rank, node, _ = self.origin(text, raw)
        entry = self._entry_of(raw)
        time = self._stamps.read(text) if entry is None else entry.time
        return Line(text, number, self.path, rank, node, time, self._trust)

    def _entry_of(self, raw: bytes) -> Line | None:
        if not self.is_journal:
            return None
        if self._entry[0] is not raw:
            self._entry = (raw, journal_entry(raw))
        return self._entry[1]

    @property
    def path_node(self) -> str | None:
        """The node that the path of the source names."""
        return self._of_path.node

    def resolve(self, rank: int | None, local: int | None) -> int | None:
        """The global rank, from what a line tells of the global and the local one."""
        if rank is not None:
            if local is not None:
                self._global[local] = rank
            return rank
        return self._path_rank if local is None else self._global.get(local, local)


def journal_entry(raw: bytes) -> Line | None:
    """One line of `journalctl -o json` as what it carries; None where `raw` is no such line."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("MESSAGE"), str):
        return None
    try:
        time = int(fields["__REALTIME_TIMESTAMP"]) / MICROSECONDS
    except (KeyError, TypeError, ValueError, OverflowError):
        time = None
    node = fields.get("_HOSTNAME")
    return Line(
        line_text(fields["MESSAGE"].encode("utf-8", "replace")), 0, node=node if isinstance(node, str) else None, time=time
    )
