"""Several sources at once, in processes forked from this one: the pattern databases are shared, the results come back."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from detectors.reading.sources import Source, UnreadableInput

__all__ = ["in_processes", "processes_for"]

# Below this forking and sending results back costs more than it gains.
MIN_PARALLEL_BYTES = 64 << 20
MAX_PROCESSES = 8

Result = TypeVar("Result")
# What a forked process runs; set there once, never in this process.
scan_of_process: Callable[[Source], Any] | None = None


def processes_for(sources: Sequence[Source]) -> int:
    """How many processes to read `sources` with; 1 where they are few or small, or standard input is among them."""
    if any(source.path == "-" or source.content is not None for source in sources):
        return 1
    sizes = [size_of(source) for source in sources]
    if len(sources) < 2 or sum(sizes) - max(sizes) < MIN_PARALLEL_BYTES // 2 or sum(sizes) < MIN_PARALLEL_BYTES:
        return 1
    return min(len(os.sched_getaffinity(0)), len(sources), MAX_PROCESSES)


def size_of(source: Source) -> int:
    try:
        return Path(source.path).stat().st_size
    except OSError:
        return 0


def begin(scan: Callable[[Source], Any]) -> None:
    global scan_of_process
    scan_of_process = scan


def run(source: Source) -> Any:
    if scan_of_process is None:
        raise RuntimeError("a reading process was not told what to do")
    return scan_of_process(source)


def in_processes(sources: Sequence[Source], scan: Callable[[Source], Result], processes: int) -> list[Result]:
    """`scan` of each source, in their order; the largest are begun first.

    Not for processes with threads of their own (it forks). Raises UnreadableInput where a reading process dies.
    """
    # Only here: most runs need no pool, and importing one takes longer than reading a small log.
    import multiprocessing
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

    by_size = sorted(range(len(sources)), key=lambda index: -size_of(sources[index]))
    found: dict[int, Result] = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), begin, (scan,)) as pool:
        try:
            for index, result in zip(by_size, pool.map(run, [sources[index] for index in by_size]), strict=True):
                found[index] = result
        except BrokenProcessPool:
            raise UnreadableInput("a reading process was killed, perhaps for memory; name fewer files at once") from None
    return [found[index] for index in range(len(sources))]
