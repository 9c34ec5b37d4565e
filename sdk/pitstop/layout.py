"""The monitor file: one small mapped file per rank, made by the agent, written by the training process, read by the agent.

    header   256 bytes, little-endian, all written by the agent except pid and start time
    regions  progress, metrics: two slots each; a slot is `cells` aligned 64-bit cells: check, sequence, payload ...
    names    MAX_METRICS names of 32 bytes

A writer fills the slot that `sequence % 2` names and leaves the other one whole: a process that is stopped or dies in the middle
of a write spoils one slot, never both. `check` is the Adler-32 of everything after it: it tells a torn read from a value on every
memory model. Times are CLOCK_MONOTONIC in nanoseconds: comparable between processes of one boot.

A newer minor version only appends cells; both sides use the smaller number of cells. Another major version is not touched.
"""

import enum
import mmap
import os
import struct
import zlib
from typing import Dict, NamedTuple, Optional, Tuple

__all__ = [
    "MAX_METRICS",
    "Header",
    "LayoutError",
    "Progress",
    "Section",
    "SectionTime",
    "create",
    "last_sequence",
    "read_boot_id",
    "read_header",
    "read_metrics",
    "read_progress",
    "start_time",
]

MAGIC = b"PITSTOPM"
MAJOR = 1
MINOR = 0
HEADER_SIZE = 256
HEADER = struct.Struct("<8sHHIIIII16sQqQQ")
IDENTITY = struct.Struct("<QQ")
IDENTITY_OFFSET = HEADER.size - IDENTITY.size
MAX_METRICS = 8
NAME_SIZE = 32

CHECK, SEQUENCE, PAYLOAD = 0, 1, 2
# Cells of the progress region, after check and sequence.
STATE, STEP, SINCE, COMPLETED, LAST_NS, CHECKPOINTED, SECTION_CELLS = 2, 3, 4, 5, 6, 7, 8


class Section(enum.IntEnum):
    """What a training process is doing. `OUTSIDE`: between steps; `FAILED`: an exception left the script.

    `TRANSFER`: copies between host and GPU; `SYNC`: waiting for other ranks.
    """

    OUTSIDE = 0
    STEP = 1
    FIRST_STEP = 2
    EVALUATION = 3
    CHECKPOINT = 4
    DATA = 5
    TRANSFER = 6
    SYNC = 7
    FAILED = 8


SECTIONS = len(Section)
# Of each section: nanoseconds (without those of sections inside it), how often, and the longest.
PER_SECTION = 3
PROGRESS_CELLS = SECTION_CELLS + PER_SECTION * SECTIONS
METRICS_COUNT, METRICS_CELLS = 2, 3 + 2 * MAX_METRICS


class LayoutError(ValueError):
    """Not a monitor file that this version can use; the message says why."""


class Header(NamedTuple):
    """`generation` is the attempt's; `pid` and `started` (clock ticks since boot) are 0 until a process attached itself."""

    major: int
    minor: int
    progress_offset: int
    progress_cells: int
    metrics_offset: int
    metrics_cells: int
    names_offset: int
    boot_id: bytes
    generation: int
    rank: int
    pid: int
    started: int


class SectionTime(NamedTuple):
    """All finished sections of one kind in a process; seconds are without those of sections inside them."""

    seconds: float
    finished: int
    longest: float


class Progress(NamedTuple):
    """Where a rank is: its section, since when (ns, monotonic), steps completed, and the time spent by section.

    `step` and `checkpointed` (the step whose checkpoint was finished last) are -1 while there is none.
    """

    section: Section
    step: int
    since_ns: int
    completed: int
    last_step_ns: int
    checkpointed: int
    times: Dict[Section, SectionTime]


def read_boot_id() -> bytes:
    """16 bytes that name this boot of the machine; zeros where the kernel does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as source:
            return bytes.fromhex(source.read().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


def start_time(pid: int) -> Optional[int]:
    """When `pid` started, in clock ticks since boot; None when there is no such process (a zombie still counts as one)."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as source:
            return int(source.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def create(path: str, rank: int, generation: int) -> None:
    """Write an empty monitor file, whole or not at all."""
    progress_offset = HEADER_SIZE
    metrics_offset = progress_offset + 2 * 8 * PROGRESS_CELLS
    names_offset = metrics_offset + 2 * 8 * METRICS_CELLS
    header = HEADER.pack(
        MAGIC,
        MAJOR,
        MINOR,
        progress_offset,
        PROGRESS_CELLS,
        metrics_offset,
        METRICS_CELLS,
        names_offset,
        read_boot_id(),
        generation,
        rank,
        0,
        0,
    )
    size = names_offset + MAX_METRICS * NAME_SIZE
    unfinished = path + ".new"
    with open(unfinished, "wb") as target:
        target.write(header.ljust(size, b"\0"))
    os.replace(unfinished, path)


def read_header(buffer: "mmap.mmap | bytes | memoryview") -> Header:
    """Raises LayoutError where the bytes are no monitor file of a major version that is known here."""
    if len(buffer) < HEADER_SIZE:
        raise LayoutError("the file is too short")
    magic, *fields = HEADER.unpack_from(buffer)
    if magic != MAGIC:
        raise LayoutError("the file is not a monitor file")
    header = Header(*fields)
    if header.major != MAJOR:
        raise LayoutError("layout version %d.%d; this program knows %d" % (header.major, header.minor, MAJOR))
    for offset, cells, least in (
        (header.progress_offset, header.progress_cells, SECTION_CELLS),
        (header.metrics_offset, header.metrics_cells, METRICS_COUNT + 1),
    ):
        if offset % 8 or cells < least or offset + 16 * cells > len(buffer):
            raise LayoutError("the header contradicts the size of the file")
    if header.names_offset + MAX_METRICS * NAME_SIZE > len(buffer):
        raise LayoutError("the header contradicts the size of the file")
    return header


def read_slot(buffer: "mmap.mmap | bytes | memoryview", offset: int, cells: int) -> Optional[Tuple[int, bytes]]:
    """(sequence, payload) of the newer whole slot; None when neither is whole or nothing was written yet."""
    best: Optional[Tuple[int, bytes]] = None
    for place in (offset, offset + 8 * cells):
        slot = bytes(buffer[place : place + 8 * cells])
        check, sequence = struct.unpack_from("<QQ", slot)
        newer = best is None or sequence > best[0]
        if sequence and newer and zlib.adler32(slot[8 * SEQUENCE :]) == check:
            best = sequence, slot[8 * PAYLOAD :]
    return best


def last_sequence(buffer: "mmap.mmap | bytes | memoryview", offset: int, cells: int) -> int:
    """The sequence of the newer whole slot of a region; 0 where there is none."""
    found = read_slot(buffer, offset, cells)
    return 0 if found is None else found[0]


def read_progress(buffer: "mmap.mmap | bytes | memoryview", header: Header) -> Optional[Progress]:
    """Where the rank is; None while nothing was written or when what is there cannot be read whole."""
    found = read_slot(buffer, header.progress_offset, header.progress_cells)
    if found is None:
        return None
    payload = found[1]
    values = struct.unpack("<%dq" % (len(payload) // 8), payload)
    state, step, since, completed, last, checkpointed = values[: SECTION_CELLS - PAYLOAD]
    known = values[SECTION_CELLS - PAYLOAD :]
    times = {}
    for section in Section:
        spent, count, longest = (known + (0,) * PER_SECTION * SECTIONS)[PER_SECTION * section :][:PER_SECTION]
        times[section] = SectionTime(spent / 1e9, count, longest / 1e9)
    # A newer writer may know sections that we do not: they count as time outside steps.
    section = Section(state) if 0 <= state < SECTIONS else Section.OUTSIDE
    return Progress(section, step, since, completed, last, checkpointed, times)


def read_metrics(buffer: "mmap.mmap | bytes | memoryview", header: Header) -> Dict[str, Tuple[int, float]]:
    """name -> (step at which it was last reported, value); empty while nothing was reported or it cannot be read whole."""
    found = read_slot(buffer, header.metrics_offset, header.metrics_cells)
    if found is None:
        return {}
    payload = found[1]
    metrics = {}
    for index in range(min(struct.unpack_from("<q", payload)[0], MAX_METRICS, (len(payload) // 8 - 1) // 2)):
        place = header.names_offset + index * NAME_SIZE
        name = bytes(buffer[place : place + NAME_SIZE]).rstrip(b"\0").decode("utf-8", "replace")
        step, value = struct.unpack_from("<qd", payload, 8 + 16 * index)
        metrics[name] = (step, value)
    return metrics
