"""A process group that its members can leave at any moment, and form again under the next generation in the same process.

A peer that dies is noticed by the transport within milliseconds. One that hangs, or whose link is cut, is not: a thread of ours
then ends the collective from outside. NCCL is aborted; gloo has no abort that works, but shutting its sockets down frees whoever
waits on them (only those that were opened while the group was made, and that do not lead to the store).
"""

import contextlib
import datetime
import os
import socket
import stat
import threading
import time
from typing import Any, Callable, Iterator, List, Optional, Set

import torch
import torch.distributed as dist

from pitstop.elastic.membership import Formation, read_formation

__all__ = ["Lost", "Ring"]

LOOK_SECONDS = 0.01
INIT_SECONDS = 15.0
# A peer that vanishes is told by the transport; the group's own timeout is only the last resort.
GROUP_SECONDS = 1800.0


class Lost(RuntimeError):
    """A collective did not come to its end: a peer is gone, hangs, or a new generation began."""


def open_sockets() -> Set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, ValueError):
            number = int(name)
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                found.add(number)
    return found


def leads_to(number: int) -> Optional[int]:
    """The peer's port of a connected TCP socket; None for anything else."""
    try:
        with socket.socket(fileno=os.dup(number)) as copy:
            if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.type != socket.SOCK_STREAM:
                return None
            return int(copy.getpeername()[1])
    except OSError:
        return None


class Ring:
    """The group of one generation at a time. Its collectives raise Lost, from the training thread."""

    def __init__(self, rank: int, backend: str, path: Optional[str], threshold: Callable[[], float]) -> None:
        """`path`: where formations are told; `threshold`: how many seconds a collective of a step may last, asked while it does.

        `stepping` is for the caller to set: what is said while a group comes together has the time that forming it has.
        """
        self.rank = rank
        self.backend = backend
        self.formation: Optional[Formation] = None
        self.pending = self.agreed_to_leave = self.stepping = False
        self._limit: Optional[float] = None
        self._path = path
        self._threshold = threshold
        self._sockets: List[int] = []
        self._entered: Optional[float] = None
        self._broken = False
        self._lock = threading.Lock()
        self._closing = threading.Event()
        threading.Thread(target=self._watch, name="pitstop-ring", daemon=True).start()

    @property
    def place(self) -> int:
        """Our rank within the group."""
        assert self.formation is not None
        return self.formation.members.index(self.rank)

    @property
    def size(self) -> int:
        assert self.formation is not None
        return len(self.formation.members)

    def form(self, formation: Formation) -> None:
        """Leave the present group and make that of `formation`. Raises Lost where it does not come about."""
        self.leave()
        before = open_sockets()
        try:
            store = dist.TCPStore(
                formation.host, formation.port, is_master=False, timeout=datetime.timedelta(seconds=INIT_SECONDS)
            )
            prefix = dist.PrefixStore("pitstop/%d" % formation.generation, store)
            dist.init_process_group(
                self.backend,
                store=prefix,
                rank=formation.members.index(self.rank),
                world_size=len(formation.members),
                timeout=datetime.timedelta(seconds=GROUP_SECONDS),
            )
        except (RuntimeError, ValueError) as problem:
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
            raise Lost("generation %d was not formed: %s" % (formation.generation, problem)) from None
        opened = open_sockets() - before
        with self._lock:
            self._sockets = [number for number in opened if leads_to(number) not in (None, formation.port)]
            self.formation, self._broken, self.pending, self.agreed_to_leave = formation, False, False, False
            self._limit = None

    def leave(self) -> None:
        with self._lock:
            self._sockets = []
        if dist.is_initialized():
            with contextlib.suppress(Exception):
                dist.destroy_process_group()

    def abandon(self) -> None:
        """The group is lost to us: those who wait for us in it learn of it now, not when their own patience is over."""
        if self.formation is not None:
            self._break(self.formation)

    def close(self) -> None:
        self._closing.set()
        self.leave()

    @contextlib.contextmanager
    def collective(self) -> Iterator[None]:
        """Around collectives: whatever keeps them from their end becomes Lost."""
        if self._broken:
            raise Lost("a new generation began")
        self._entered = entered = time.monotonic()
        try:
            yield
        except (RuntimeError, ValueError) as problem:
            why = str(problem).split("\n")[0]
            if self._limit is not None:
                why = "its peers did not come for %.3f s (limit %.3f s)" % (time.monotonic() - entered, self._limit)
            raise Lost(why) from None
        finally:
            self._entered = None

    def check(self) -> None:
        """Raises Lost where the group is known to be broken; costs nothing."""
        if self._broken:
            raise Lost("a new generation began")

    def sum(self, tensor: torch.Tensor) -> None:
        with self.collective():
            dist.all_reduce(tensor)

    def gather(self, value: Any) -> List[Any]:
        with self.collective():
            values: List[Any] = [None] * self.size
            dist.all_gather_object(values, value)
        return values

    def broadcast(self, tensors: List[torch.Tensor], source: int) -> None:
        """Each tensor as the member `source` has it."""
        assert self.formation is not None
        place = self.formation.members.index(source)
        with self.collective():
            for tensor in tensors:
                dist.broadcast(tensor, place)

    def _watch(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            formation, entered = self.formation, self._entered
            if formation is None or self._broken:
                continue
            if self._path is not None:
                told = read_formation(self._path, self.rank)
                if told is not None and told.generation > formation.generation:
                    if set(told.members) >= set(formation.members):
                        # Somebody joins: the step is finished first.
                        self._ask_to_leave(formation)
                    else:
                        self._break(formation)
                    continue
            limit = self._threshold() if self.stepping else INIT_SECONDS
            if entered is not None and time.monotonic() - entered > limit and self._entered == entered:
                self._break(formation, limit)

    def _ask_to_leave(self, formation: Formation) -> None:
        # While the watching thread looked, the training thread may have left that group and formed the next one.
        with self._lock:
            if self.formation is formation:
                self.pending = True

    def _break(self, formation: Formation, limit: Optional[float] = None) -> None:
        """End whatever collective of `formation` is under way, because of `limit` where it lasted too long."""
        # Under the lock to the end: what is aborted or shut down must not be the next group's.
        with self._lock:
            if self._broken or self.formation is not formation:
                return
            self._broken, self._limit = True, limit
            if self.backend == "nccl":
                with contextlib.suppress(Exception):
                    dist.distributed_c10d._abort_process_group()
                return
            for number in self._sockets:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
                    copy.shutdown(socket.SHUT_RDWR)
