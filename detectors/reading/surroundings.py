"""Records that span several lines: Python tracebacks and torchrun's summary of failures, put together per rank.

A record is looked up from the line that a rule matched, backwards through the lines of the same rank: lines of other ranks
between them do not tear it. Frames are context; the line that names the exception is the signal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from detectors.reading.lines import LineMaker
from detectors.reading.text import line_text, origin_of_text, strip_escapes

__all__ = ["SOURCE_INDENT", "Surroundings", "is_broadcast"]

# How far back a record may begin, in lines of its own rank and of all.
MAX_RECORD_LINES = 200
MAX_DISTANCE = 2_000

FRAME = re.compile(r'^\s+File "(?P<file>[^"]{1,400})", line (?P<line>\d+)(?:, in (?P<function>\S{1,120}))?')
# A frame's source text stands four spaces in, of which a rank's prefix may have taken one.
SOURCE_INDENT = "   "
NATIVE_FRAME = re.compile(r"^frame #\d+: ")
LIBRARY = re.compile(r"site-packages/|dist-packages/|/lib/python\d|<frozen |^<string>|/bin/(?:torchrun|accelerate|deepspeed)$")
TRACEBACK = re.compile(r"^Traceback \(most recent call last\):")
SUMMARY_FIELD = re.compile(r"^\s+(?P<name>time|host|rank|exitcode|error_file)\s+: (?P<value>.{1,200})")
SUMMARY_TAIL = re.compile(r"^\s+(?:exitcode|traceback)\s+: ")
SUMMARY_RANK = re.compile(r"^(?P<rank>\d+) \(local_rank: (?P<local_rank>\d+)\)")
# What syslog shows on every terminal of a host stands below a line that names the host.
BROADCAST = re.compile(r" ?kernel:")
BROADCAST_TITLE = re.compile(rb"\r?\x07?Message from syslogd@(?P<node>[\w.-]{1,64}) at ")
SUMMARY_TITLE = re.compile(r"Root Cause \(first observed failure\):|Other Failures:")


class Surroundings:
    """The lines around a match: those of its block and the end of the block before."""

    def __init__(self) -> None:
        self._lines: Sequence[bytes] = ()
        self._first = 1
        self._data: bytes | memoryview = b""
        self._before: bytes | memoryview = b""

    def move(self, first: int, data: bytes | memoryview, before: bytes | memoryview) -> None:
        """Go on to the block `data`, whose first line is number `first`; `before` is the block before it."""
        self._lines = ()
        self._first = first
        self._data = data
        self._before = before

    def lines(self, start: int, end: int) -> tuple[int, Sequence[bytes]]:
        """The lines from number `start` up to and without `end`, as far as they are in reach, and the number of the first."""
        if not self._lines and self._data:
            # Cut only where somebody looks: most blocks are matched and done.
            self._lines = bytes(self._data).split(b"\n")[:-1]
        if start < self._first and self._before:
            above = bytes(self._before).rsplit(b"\n", MAX_DISTANCE + 1)[-MAX_DISTANCE - 1 : -1]
            self._lines = [*above, *self._lines]
            self._first -= len(above)
            self._before = b""
        start = max(start, self._first)
        return start, self._lines[start - self._first : max(0, end - self._first)]

    def is_frame(self, maker: LineMaker, number: int, rest: str) -> bool:
        """Whether line `number`, whose text after its prefixes is `rest`, is part of a Python or C++ traceback's frames."""
        if NATIVE_FRAME.match(rest):
            return True
        if not rest.startswith(" "):
            return False
        if FRAME.match(rest):
            return True
        if not rest.startswith(SOURCE_INDENT):
            return False
        above = next(self._upwards(maker, number), None)
        return above is not None and FRAME.match(above) is not None

    def details(self, maker: LineMaker, number: int, rest: str) -> Mapping[str, str]:
        """What the record of line `number` adds: where an exception was raised, or whose end a summary tells."""
        if SUMMARY_TAIL.match(rest):
            return self._summary(maker, number)
        if rest[:1].isspace():
            return {}
        return self._raised_at(maker, number)

    def _upwards(self, maker: LineMaker, number: int) -> Iterator[str]:
        """The texts of the lines above `number` that the same rank wrote, nearest first, without their prefixes."""
        first, lines = self.lines(number, number + 1)
        rank = maker.rank(lines[0])
        found = 0
        for above in range(number - 1, max(0, number - MAX_DISTANCE), -1):
            first, lines = self.lines(above, above + 1)
            if first != above:
                return
            if maker.rank(lines[0]) != rank:
                continue
            yield origin_of_text(line_text(lines[0]))[1]
            found += 1
            if found == MAX_RECORD_LINES:
                return

    def _raised_at(self, maker: LineMaker, number: int) -> Mapping[str, str]:
        """The deepest frame of the program itself, else of a library, of the traceback that line `number` ends."""
        innermost = own = None
        for rest in self._upwards(maker, number):
            if TRACEBACK.match(rest):
                break
            if rest and not rest.startswith(" "):
                # A message of several lines stands between its first line and the frames only at the very end.
                if innermost is None:
                    break
                continue
            frame = FRAME.match(rest)
            if frame is None:
                continue
            innermost = innermost or frame
            if not LIBRARY.search(frame["file"]):
                own = frame
                break
        frame = own or innermost
        if frame is None:
            return {}
        function = f" in {frame['function']}" if frame["function"] else ""
        return {"raised_at": f"{frame['file']}:{frame['line']}{function}"}

    def broadcaster(self, number: int) -> str | None:
        """The host whose syslog showed line `number` on every terminal."""
        first, lines = self.lines(number - 1, number)
        title = BROADCAST_TITLE.match(strip_escapes(lines[0])) if first == number - 1 and lines else None
        return title["node"].decode("ascii") if title else None

    def _summary(self, maker: LineMaker, number: int) -> Mapping[str, str]:
        """Rank, node and time of the failure that torchrun's summary describes around line `number`."""
        found: dict[str, str] = {}
        for rest in self._upwards(maker, number):
            if SUMMARY_TITLE.search(rest):
                found["observed"] = "first" if rest.startswith("Root") else "later"
                break
            field = SUMMARY_FIELD.match(rest)
            if field is None or len(found) > len(SUMMARY_NAMES) + 1:
                continue
            name, value = field["name"], field["value"].strip()
            if name == "rank" and (ranks := SUMMARY_RANK.match(value)):
                found.setdefault("rank", ranks["rank"])
                found.setdefault("local_rank", ranks["local_rank"])
            elif name in SUMMARY_NAMES:
                found.setdefault(SUMMARY_NAMES[name], value)
        return found


def is_broadcast(rest: str) -> bool:
    """Whether a line of this text may stand below the title of a broadcast, which says whose it is."""
    return BROADCAST.match(rest) is not None


SUMMARY_NAMES = {"time": "failed_at", "host": "node"}
