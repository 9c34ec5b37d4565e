"""Processes of this machine: who one is, whether it lives, how it ended, and the whole of its process group."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pitstop.layout import start_time

__all__ = [
    "Ended",
    "ProcessId",
    "Scheduling",
    "adopt_orphans",
    "children",
    "ended_children",
    "identify",
    "is_running",
    "reap",
    "scheduling",
    "signal_group",
    "signal_name",
]

PR_SET_CHILD_SUBREAPER = 36
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process beyond doubt: a pid alone is used again. `started` in clock ticks since boot."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: by itself with `code`, or by `signal`; the other one is None."""

    pid: int
    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class Scheduling:
    """`state` is the kernel's letter (R, S, D, T, Z ...), of the main thread; `cpu_seconds` of all threads since the start.

    `runnable_seconds`: how long the main thread ran or waited for a processor, which a crowded machine does not change.
    """

    state: str
    cpu_seconds: float
    runnable_seconds: float


def scheduling(process: ProcessId) -> Scheduling | None:
    """None when that very process is gone."""
    fields = stat_fields(process)
    if fields is None:
        return None
    cpu_seconds = (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    try:
        ran, waited = Path(f"/proc/{process.pid}/schedstat").read_bytes().split()[:2]
        runnable_seconds = (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):
        # A kernel without scheduler statistics.
        runnable_seconds = cpu_seconds
    return Scheduling(fields[0].decode(), cpu_seconds, runnable_seconds)


def stat_fields(process: ProcessId) -> list[bytes] | None:
    """What the kernel tells of it behind its name, from the state on; None when that very process is gone."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields if len(fields) >= 20 and int(fields[19]) == process.started else None


def identify(pid: int) -> ProcessId | None:
    """None when there is no such process."""
    started = start_time(pid)
    return None if started is None else ProcessId(pid, started)


def is_running(process: ProcessId) -> bool:
    """Whether that very process still runs; one that ended and was not waited for does not."""
    fields = stat_fields(process)
    return fields is not None and fields[0] not in (b"Z", b"X")


def signal_group(leader: int, number: int) -> bool:
    """Signal the process group of `leader`, for one that the caller has not waited for yet; False when nobody is in it."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def ended_children() -> Iterator[Ended]:
    """Children that ended and wait to be reaped, each left as it is; `reap` it before asking for the next one."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None:
            return
        if found.si_code == os.CLD_EXITED:
            yield Ended(found.si_pid, found.si_status, None)
        else:
            yield Ended(found.si_pid, None, found.si_status)


def reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED)


def children() -> frozenset[int]:
    """Pids of the children of this process, those of its threads included."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found.update(int(pid) for pid in (thread / "children").read_text().split())
    return frozenset(found)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent died, so that none escapes it. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def signal_name(number: int) -> str:
    """SIGKILL for 9; the bare number where it has no name (real-time signals)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
