"""The step monitor of a training process.

    import pitstop

    monitor = pitstop.init()
    for i in range(steps):
        with monitor.step(i):
            ...
        monitor.report(loss=loss, grad_norm=norm)

What it says goes into a mapped file of `pitstop.layout` that the agent made: no socket, no lock and no system call on the way.
Without an agent every call does nothing; that is said once on standard error, and only where an agent was expected.
"""

import json
import mmap
import os
import sys
from time import monotonic_ns
from types import TracebackType
from typing import Callable, Dict, Optional, Sequence, Type, Union
from zlib import adler32

from pitstop import layout, protocol
from pitstop.layout import (
    CHECK,
    CHECKPOINTED,
    COMPLETED,
    LAST_NS,
    PER_SECTION,
    SECTION_CELLS,
    SEQUENCE,
    SINCE,
    STATE,
    STEP,
    Section,
)

__all__ = ["Monitor", "NoMonitor", "init"]

# Plain numbers: an enum member costs more to compare, and this is every step's path.
STEP_SECTION = int(Section.STEP)
CHECKPOINT = int(Section.CHECKPOINT)


def publisher(image: memoryview, slots: Sequence[memoryview], sequence: int) -> Callable[[], None]:
    """A function that shows `image` (check, sequence, payload) to readers, through the two slots by turns.

    `sequence`: of what is in the file already, where a launcher started this rank again on the same one.
    """
    cells, body = image.cast("q"), image[8 * SEQUENCE :]
    even, odd = slots

    def publish() -> None:
        nonlocal sequence
        sequence += 1
        cells[SEQUENCE] = sequence
        cells[CHECK] = adler32(body)
        if sequence & 1:
            odd[:] = image
        else:
            even[:] = image

    return publish


class Timed:
    """A section as a context manager; one object per section, reused, so that entering it allocates nothing.

    Time belongs to the innermost section: what one spends inside another is taken off the outer one.
    """

    __slots__ = ("began", "cell", "entered", "monitor", "outer", "section")

    def __init__(self, monitor: "Monitor", section: int) -> None:
        self.monitor = monitor
        self.section = section
        self.cell = SECTION_CELLS + PER_SECTION * section
        self.outer: Optional[Timed] = None
        self.began = self.entered = 0

    def __enter__(self) -> None:
        monitor = self.monitor
        cells = monitor.cells
        self.outer = monitor.inside
        monitor.inside = self
        self.began = self.entered = now = monotonic_ns()
        cells[STATE] = self.section
        cells[SINCE] = now
        monitor.publish()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        # A section that an exception left stays as it was: the excepthook, or the next step, says what came after.
        if kind is not None:
            return
        monitor = self.monitor
        cells = monitor.cells
        now = monotonic_ns()
        self.count(cells, now)
        outer = monitor.inside = self.outer
        if outer is None:
            cells[STATE] = 0
        else:
            cells[STATE] = outer.section
            outer.entered += now - self.began
        cells[SINCE] = now
        if self.section == CHECKPOINT:
            cells[CHECKPOINTED] = cells[STEP]
        monitor.publish()

    def count(self, cells: "memoryview", now: int) -> None:
        cell, spent = self.cell, now - self.entered
        cells[cell] += spent
        cells[cell + 1] += 1
        if spent > cells[cell + 2]:
            cells[cell + 2] = spent


class Step(Timed):
    """A training step: the first of a process counts as a section of its own, because it compiles, allocates and connects."""

    __slots__ = ()

    def __enter__(self) -> None:
        monitor = self.monitor
        cells = monitor.cells
        monitor.inside = self
        now = monotonic_ns()
        if cells[COMPLETED]:
            cells[SECTION_CELLS] += now - cells[SINCE]
            cells[SECTION_CELLS + 1] += 1
        self.began = self.entered = now
        cells[STATE] = self.section
        cells[SINCE] = now
        monitor.publish()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is not None:
            return
        monitor = self.monitor
        cells = monitor.cells
        now = monotonic_ns()
        self.count(cells, now)
        monitor.inside = None
        cells[STATE] = 0
        cells[SINCE] = now
        cells[COMPLETED] += 1
        cells[LAST_NS] = now - self.began
        if self.section != STEP_SECTION:
            self.section = STEP_SECTION
            self.cell = SECTION_CELLS + PER_SECTION * STEP_SECTION
        monitor.publish()


class AnotherRank(Exception):
    """The monitor file was made for another rank than this one."""


class Monitor:
    """Writes one rank's progress. Made by `init`; for one thread (the training loop's)."""

    def __init__(self, path: str) -> None:
        """Raises OSError or layout.LayoutError where `path` cannot be used, AnotherRank where it is not this rank's."""
        with open(path, "r+b") as source:
            self._map = mmap.mmap(source.fileno(), 0)
        header = layout.read_header(self._map)
        if os.environ.get("RANK", str(header.rank)) != str(header.rank):
            raise AnotherRank
        self.rank = header.rank
        layout.IDENTITY.pack_into(self._map, layout.IDENTITY_OFFSET, os.getpid(), layout.start_time(os.getpid()) or 0)
        file = memoryview(self._map)
        image = memoryview(bytearray(8 * max(header.progress_cells, layout.PROGRESS_CELLS)))
        self.cells = image.cast("q")
        at, size = header.progress_offset, 8 * header.progress_cells
        slots = (file[at : at + size], file[at + size : at + 2 * size])
        self.publish = publisher(image[:size], slots, layout.last_sequence(self._map, at, header.progress_cells))
        image = memoryview(bytearray(8 * max(header.metrics_cells, layout.METRICS_CELLS)))
        self._metric_integers, self._metric_numbers = image.cast("q"), image.cast("d")
        at, size = header.metrics_offset, 8 * header.metrics_cells
        slots = (file[at : at + size], file[at + size : at + 2 * size])
        self._publish_metrics = publisher(image[:size], slots, layout.last_sequence(self._map, at, header.metrics_cells))
        self._metric_room = min(layout.MAX_METRICS, (header.metrics_cells - layout.METRICS_COUNT - 1) // 2)
        self._names: Dict[str, int] = {}
        self._names_file = file[header.names_offset :]
        self.cells[STEP] = self.cells[CHECKPOINTED] = -1
        self.inside: Optional[Timed] = None
        self._step = Step(self, int(Section.FIRST_STEP))
        self._sections = {section: Timed(self, int(section)) for section in Section}

    def step(self, number: int) -> Step:
        """`with monitor.step(i):` around everything that one training step does."""
        self.cells[STEP] = number
        return self._step

    def evaluation(self) -> Timed:
        """`with monitor.evaluation():`, also inside a step."""
        return self._sections[Section.EVALUATION]

    def checkpoint(self) -> Timed:
        """`with monitor.checkpoint():`, also inside a step."""
        return self._sections[Section.CHECKPOINT]

    def data(self) -> Timed:
        """`with monitor.data():` around waiting for the next batch, also inside a step."""
        return self._sections[Section.DATA]

    def transfer(self) -> Timed:
        """`with monitor.transfer():` around copies between host and GPU, also inside a step."""
        return self._sections[Section.TRANSFER]

    def sync(self) -> Timed:
        """`with monitor.sync():` around waiting for other ranks: what is left of a step is then the rank's own."""
        return self._sections[Section.SYNC]

    def report(self, **values: float) -> None:
        """Numbers of the present step, such as loss and grad_norm: the first MAX_METRICS names of a process are kept.

        A value is read with float(): a tensor on a GPU is waited for.
        """
        integers, numbers = self._metric_integers, self._metric_numbers
        for name, value in values.items():
            index = self._names.get(name)
            if index is None:
                index = len(self._names)
                if index >= self._metric_room:
                    continue
                self._names[name] = index
                place = index * layout.NAME_SIZE
                encoded = name.encode()[: layout.NAME_SIZE].ljust(layout.NAME_SIZE, b"\0")
                self._names_file[place : place + layout.NAME_SIZE] = encoded
                integers[layout.METRICS_COUNT] = index + 1
            place = layout.METRICS_COUNT + 1 + 2 * index
            integers[place] = self.cells[STEP]
            numbers[place + 1] = float(value)
        self._publish_metrics()

    def failed(self, error: BaseException) -> None:
        """An exception is about to end this process: pass it on, structured, before anything else can go wrong."""
        step = self.cells[STEP]
        write_error_file(error, self.rank, step if step >= 0 else None)
        self.cells[STATE] = Section.FAILED
        self.cells[SINCE] = monotonic_ns()
        self.publish()


class Nothing:
    """A context manager that does nothing."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


NOTHING = Nothing()


class NoMonitor:
    """What `init` answers where no agent watches: every call does nothing."""

    def step(self, number: int) -> Nothing:
        return NOTHING

    def evaluation(self) -> Nothing:
        return NOTHING

    def checkpoint(self) -> Nothing:
        return NOTHING

    def data(self) -> Nothing:
        return NOTHING

    def transfer(self) -> Nothing:
        return NOTHING

    def sync(self) -> Nothing:
        return NOTHING

    def report(self, **values: float) -> None:
        return None

    def failed(self, error: BaseException) -> None:
        rank = os.environ.get("RANK", "")
        write_error_file(error, int(rank) if rank.isdigit() else None, None)


def write_error_file(error: BaseException, rank: Optional[int], step: Optional[int]) -> None:
    """Write TORCHELASTIC_ERROR_FILE unless torch's own handler did; a failure to write is never raised."""
    path = os.environ.get(protocol.ERROR_FILE)
    if not path or os.path.exists(path):
        return
    try:
        with open(path + ".new", "w", encoding="utf-8", errors="backslashreplace") as target:
            json.dump(protocol.error_document(error, rank, step), target)
        os.replace(path + ".new", path)
    except OSError as problem:
        print("pitstop: the error file cannot be written: %s" % problem, file=sys.stderr)


_present: Optional[Union[Monitor, NoMonitor]] = None


def init() -> Union[Monitor, NoMonitor]:
    """The monitor of this process (one; asking again answers the same). Also passes uncaught exceptions on to the agent."""
    global _present
    if _present is not None:
        return _present
    path = os.environ.get(protocol.MONITOR)
    monitor: Union[Monitor, NoMonitor] = NoMonitor()
    if path:
        try:
            monitor = Monitor(path)
        except AnotherRank:
            # Under a launcher that starts the ranks itself, the file is for the first of them.
            pass
        except (OSError, ValueError) as problem:
            print("pitstop: not monitored: %s: %s" % (path, problem), file=sys.stderr)
    previous, own_pid = sys.excepthook, os.getpid()

    def hook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        # A forked data-loading worker is not the rank.
        if not issubclass(kind, KeyboardInterrupt) and os.getpid() == own_pid:
            monitor.failed(error)
        previous(kind, error, trace)

    sys.excepthook = hook
    _present = monitor
    return monitor
