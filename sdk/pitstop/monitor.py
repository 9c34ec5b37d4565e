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
import time
import zlib
from types import TracebackType
from typing import Any, Dict, Optional, Type, Union

from pitstop import layout, protocol
from pitstop.layout import CHECK, CHECKPOINTED, COMPLETED, LAST_NS, SECTION_CELLS, SEQUENCE, SINCE, STATE, STEP, Section

__all__ = ["Monitor", "NoMonitor", "init"]


class Timed:
    """A section as a context manager; one object per section, reused, so that entering it allocates nothing."""

    __slots__ = ("before", "entered", "monitor", "section")

    def __init__(self, monitor: "Monitor", section: int) -> None:
        self.monitor = monitor
        self.section = section
        self.before = 0
        self.entered = 0

    def __enter__(self) -> None:
        monitor = self.monitor
        cells = monitor.cells
        self.before = cells[STATE]
        self.entered = now = time.monotonic_ns()
        cells[STATE] = self.section
        cells[SINCE] = now
        monitor.publish()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        # A section that an exception left stays as it was: the excepthook, or the next section, says what came after.
        if kind is not None:
            return
        monitor = self.monitor
        cells = monitor.cells
        now = time.monotonic_ns()
        place = SECTION_CELLS + 2 * self.section
        cells[place] += now - self.entered
        cells[place + 1] += 1
        cells[STATE] = self.before
        cells[SINCE] = now
        if self.section == Section.CHECKPOINT:
            cells[CHECKPOINTED] = cells[STEP]
        monitor.publish()


class Step(Timed):
    """A training step: the first of a process counts as a section of its own, because it compiles, allocates and connects."""

    __slots__ = ()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is not None:
            return
        monitor = self.monitor
        cells = monitor.cells
        now = time.monotonic_ns()
        spent = now - self.entered
        place = SECTION_CELLS + 2 * self.section
        cells[place] += spent
        cells[place + 1] += 1
        cells[STATE] = 0
        cells[SINCE] = now
        cells[COMPLETED] += 1
        cells[LAST_NS] = spent
        self.section = 1
        monitor.publish()


class Monitor:
    """Writes one rank's progress. Made by `init`; for one thread (the training loop's)."""

    def __init__(self, path: str) -> None:
        """Raises OSError or layout.LayoutError where `path` cannot be used."""
        with open(path, "r+b") as source:
            self._map = mmap.mmap(source.fileno(), 0)
        header = layout.read_header(self._map)
        self.rank = header.rank
        layout.IDENTITY.pack_into(self._map, layout.IDENTITY_OFFSET, os.getpid(), layout.start_time(os.getpid()) or 0)
        file = memoryview(self._map)
        known = max(header.progress_cells, layout.PROGRESS_CELLS)
        self._bytes = memoryview(bytearray(8 * known))
        self.cells = self._bytes.cast("q")
        self._image = self._bytes[: 8 * header.progress_cells]
        self._payload = self._image[16:]
        at, size = header.progress_offset, 8 * header.progress_cells
        self._slots = (file[at : at + size], file[at + size : at + 2 * size])
        self._sequence = 0
        known = max(header.metrics_cells, layout.METRICS_CELLS)
        metrics = memoryview(bytearray(8 * known))
        self._metric_integers, self._metric_numbers = metrics.cast("q"), metrics.cast("d")
        self._metric_image = metrics[: 8 * header.metrics_cells]
        at, size = header.metrics_offset, 8 * header.metrics_cells
        self._metric_slots = (file[at : at + size], file[at + size : at + 2 * size])
        self._metric_sequence = 0
        self._metric_room = min(layout.MAX_METRICS, (header.metrics_cells - layout.METRICS_CELLS) // 2 + layout.MAX_METRICS)
        self._names: Dict[str, int] = {}
        self._names_file = file[header.names_offset :]
        self.cells[STEP] = self.cells[CHECKPOINTED] = -1
        self._step = Step(self, Section.FIRST_STEP)
        self._sections = {section: Timed(self, section) for section in Section}

    def publish(self, crc32: Any = zlib.crc32) -> None:
        self._sequence = sequence = self._sequence + 1
        cells = self.cells
        cells[SEQUENCE] = sequence
        cells[CHECK] = crc32(self._payload, (sequence ^ sequence >> 32) & 0xFFFFFFFF)
        self._slots[sequence & 1][:] = self._image

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
        self._metric_sequence = sequence = self._metric_sequence + 1
        integers[SEQUENCE] = sequence
        integers[CHECK] = zlib.crc32(self._metric_image[16:], (sequence ^ sequence >> 32) & 0xFFFFFFFF)
        self._metric_slots[sequence & 1][:] = self._metric_image

    def failed(self, error: BaseException) -> None:
        """An exception is about to end this process: pass it on, structured, before anything else can go wrong."""
        step = self.cells[STEP]
        write_error_file(error, self.rank, step if step >= 0 else None)
        self.cells[STATE] = Section.FAILED
        self.cells[SINCE] = time.monotonic_ns()
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
