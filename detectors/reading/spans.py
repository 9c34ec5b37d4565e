"""How much each rank wrote, and when it began and ended: silence must stay visible."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from detectors.reading.lines import LineMaker
from rules.compression import CompressionReport
from rules.findings import RankSpan
from rules.signal import Line

__all__ = ["SpanTracker"]

# Ranks missing from the end of a block beyond this many are looked for line by line instead of one by one.
FEW = 12
TAIL_BYTES = 1 << 15
PREFIX_BYTES = 40
# How far back from the end of a block a rank's last stamp is looked for where its last line has none.
MAX_UNSTAMPED = 2_000
STAMPED = re.compile(rb"\d\d:\d\d:\d\d|\b1\d{9}\b")
STAMP_BYTES = 160


@dataclass(slots=True)
class Track:
    """One rank so far: its last line, what that began with, and the last line that bears a stamp."""

    lines: int
    first_time: float | None
    last: bytes
    number: int
    prefix: bytes
    stamped: bytes = b""


class SpanTracker:
    """Follows the ranks of one source. Of a large source it looks at each block's end, and further back only for ranks that are
    missing there; `lines` of a rank is then an estimate.
    """

    def __init__(self, maker: LineMaker) -> None:
        self._maker = maker
        self._tracks: dict[int, Track] = {}

    @property
    def ranks(self) -> int:
        """How many ranks were seen so far."""
        return len(self._tracks)

    def observe(self, first: int, data: bytes, lines: int, whole: bool) -> None:
        """`data` holds `lines` whole lines that follow one another from number `first`."""
        start = 0 if whole else data.rfind(b"\n", 0, max(1, len(data) - TAIL_BYTES)) + 1
        seen = self._look(data[start:], first, lines)
        if start:
            missing = [track for rank, track in self._tracks.items() if rank not in seen and track.prefix]
            if len(missing) > FEW:
                seen = self._look(data, first, lines)
                start = 0
            else:
                for track in missing:
                    self._look_for(track, data, start, first)
        scale = lines / max(1, data.count(b"\n", start))
        for rank, count in seen.items():
            self._tracks[rank].lines += max(1, round(count * scale))

    def _look(self, part: bytes, first: int, lines: int) -> Mapping[int, int]:
        """Take note of the last line of each rank in `part`, the end of the block; how many lines each has."""
        raws = part.split(b"\n")
        raws.pop()
        offset = first + lines - len(raws)
        rank_of = self._maker.rank
        last: dict[int, int] = {}
        earliest: dict[int, int] = {}
        counts: dict[int, int] = {}
        for index, raw in enumerate(raws):
            rank = rank_of(raw)
            if rank is not None:
                if rank not in counts:
                    counts[rank] = 0
                    earliest[rank] = index
                counts[rank] += 1
                last[rank] = index
        for rank, index in last.items():
            raw = raws[index]
            track = self._tracks.get(rank)
            if track is None:
                begun = self._maker.make(raws[earliest[rank]], offset).time
                self._tracks[rank] = Track(0, begun, raw, offset + index, prefix_of(raw))
            elif offset + index > track.number:
                track.last, track.number, track.prefix = raw, offset + index, prefix_of(raw)
        self._stamp(raws, last)
        return counts

    def _stamp(self, raws: Sequence[bytes], last: Mapping[int, int]) -> None:
        """Remember the last stamped line of each rank in `raws`."""
        open_ranks = set()
        for rank, index in last.items():
            if STAMPED.search(raws[index], 0, STAMP_BYTES):
                self._tracks[rank].stamped = raws[index]
            else:
                open_ranks.add(rank)
        if not open_ranks:
            return
        for raw in raws[: -MAX_UNSTAMPED - 1 : -1]:
            writer = self._maker.rank(raw)
            if writer in open_ranks and writer is not None and STAMPED.search(raw, 0, STAMP_BYTES):
                self._tracks[writer].stamped = raw
                open_ranks.remove(writer)
                if not open_ranks:
                    return

    def _look_for(self, track: Track, data: bytes, end: int, first: int) -> None:
        at = data.rfind(b"\n" + track.prefix, 0, end) + 1
        if at or data.startswith(track.prefix):
            track.last = data[at : data.find(b"\n", at)]
            track.number = first + data.count(b"\n", 0, at)
            track.lines += 1
            if STAMPED.search(track.last, 0, STAMP_BYTES):
                track.stamped = track.last

    def spans(self, report: CompressionReport | None = None) -> dict[int, RankSpan]:
        """What each rank's last words were; from `report` where the source was sifted, which saw every line."""
        result = {}
        for rank, track in self._tracks.items():
            line: Line = self._maker.make(track.last, track.number)
            stamped = self._maker.make(track.stamped, 0).time if track.stamped else None
            result[rank] = RankSpan(rank, track.lines, track.first_time, line.time or stamped, line)
        for known, trace in (report.ranks if report is not None else {}).items():
            seen = result.get(known) if known is not None else None
            if known is None or (seen is not None and seen.last_line and seen.last_line.number >= trace.last_number):
                continue
            line = replace(self._maker.make(trace.last_line.encode(), trace.last_number), rank=known)
            times = [reading.time for reading in trace.readings if reading.time is not None]
            last_time = trace.last_time if trace.last_time is not None else max(times, default=None)
            result[known] = RankSpan(known, trace.lines, seen.first_time if seen else None, last_time, line)
        return result


def prefix_of(raw: bytes) -> bytes:
    """The rank prefix at the beginning of `raw`; empty where the rank comes from elsewhere."""
    end = raw.find(b"]:", 0, PREFIX_BYTES)
    return raw[: end + 2] if end > 0 else b""
