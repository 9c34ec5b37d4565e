"""The kernel's log as it is written: records of /dev/kmsg, read without ever waiting (Documentation/ABI/testing/dev-kmsg)."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KMSG", "KernelLine", "KernelLog", "parse_record"]

KMSG = Path("/dev/kmsg")
RECORD_BYTES = 8192
MOST_RECORDS = 2000
# Bytes that the kernel escapes: \x0a
ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class KernelLine:
    """`sequence` rises by one a record within a boot; `seconds` since boot; `text` as dmesg prints it, with its stamp."""

    sequence: int
    seconds: float
    text: str


def parse_record(record: bytes) -> KernelLine | None:
    """One record, `priority,sequence,microseconds,flags;text`, without its dictionary. None where it is none."""
    head, separator, body = record.partition(b";")
    fields = head.split(b",")
    if not separator or len(fields) < 3 or not fields[1].isdigit() or not fields[2].isdigit():
        return None
    seconds = int(fields[2]) / 1e6
    message = body.split(b"\n", 1)[0].decode("utf-8", "replace")
    message = ESCAPED.sub(lambda found: chr(int(found[1], 16)), message)
    return KernelLine(int(fields[1]), seconds, f"[{seconds:12.6f}] {message}")


class KernelLog:
    """Follows the log from `after` (a sequence of this boot) on; None: from now on. Raises OSError where it may not be read."""

    def __init__(self, after: int | None, path: Path = KMSG) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._after = -1 if after is None else after
        if after is None:
            with contextlib.suppress(OSError):
                os.lseek(self._file, 0, os.SEEK_END)
        # Records that the kernel overwrote before we came.
        self.lost = 0

    def close(self) -> None:
        os.close(self._file)

    def read(self) -> Iterator[KernelLine]:
        """What was written since the last call, at most a few thousand records."""
        for _ in range(MOST_RECORDS):
            try:
                record = os.read(self._file, RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                # The oldest records were overwritten; the next read gives the oldest that is left.
                continue
            line = parse_record(record)
            if not record:
                return
            if line is None or line.sequence <= self._after:
                continue
            if self._after >= 0:
                self.lost += line.sequence - self._after - 1
            self._after = line.sequence
            yield line
