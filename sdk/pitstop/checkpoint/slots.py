"""The slots that a trainer stages its state into: which one is written next, and memory for it before it is needed."""

import contextlib
import fcntl
import os
import threading
import time
from typing import TYPE_CHECKING, Dict, Optional, Tuple

from pitstop.checkpoint import staged
from pitstop.checkpoint.staged import SEALED, Slot

if TYPE_CHECKING:
    from typing import TypeGuard

__all__ = ["Slots"]

LOCK_SECONDS = 10.0


class Slots:
    """Those of `folder` that this process writes."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._slots: Dict[int, Slot] = {}
        self._prepared: Dict[int, Slot] = {}
        self._preparing: Optional[threading.Thread] = None

    def writable(self, rank: int, size: int) -> Tuple[Slot, int]:
        """A slot that neither holds the newest state nor is being flushed, with its lock. Raises OSError."""
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None
        own = staged.slot_path(self._folder, rank, 0)[:-1]
        whole = {path: header.sequence for path, kind, header in staged.slots_of(self._folder) if path.startswith(own)}
        newest = max(whole, key=lambda path: whole[path], default="")
        turns = [turn for turn in range(len(staged.TURNS)) if own + str(turn) != newest]
        # One that is there already costs no more memory; of these the oldest.
        turns.sort(key=lambda turn: (not os.path.exists(own + str(turn)), whole.get(own + str(turn), 0), turn))
        deadline = time.monotonic() + LOCK_SECONDS
        while time.monotonic() < deadline:
            for turn in turns:
                slot = self._slot(rank, turn, size)
                lock = os.open(slot.path, os.O_RDONLY | os.O_CLOEXEC)
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return slot, lock
                os.close(lock)
            # Besides the flush only the sealing of a state reads a slot, and that takes no time.
            time.sleep(0.001)
        raise OSError("every slot of rank %d is being read" % rank)

    def _slot(self, rank: int, turn: int, size: int) -> Slot:
        path = staged.slot_path(self._folder, rank, turn)
        slot = self._slots.get(turn)
        if not fits(slot, path, size):
            if slot is not None:
                del self._slots[turn]
                slot.close()
            slot = self._prepared.pop(turn, None)
            if not fits(slot, path, size):
                slot = Slot(path, size, placed=False)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + SEALED)
            slot.place()
            self._slots[turn] = slot
        return slot

    def prepare(self, rank: int, size: int) -> None:
        """Make the slot of the next save beside the training: to get memory takes many times as long as to copy into it."""
        paths = {turn: staged.slot_path(self._folder, rank, turn) for turn in range(2)}
        missing = [turn for turn, path in paths.items() if not fits(self._slots.get(turn), path, size)]
        if not missing:
            return
        turn, path = missing[0], paths[missing[0]]

        def make() -> None:
            # Where there is none left the next save says so.
            with contextlib.suppress(OSError):
                self._prepared[turn] = Slot(path, size, placed=False)

        self._preparing = threading.Thread(target=make, name="pitstop-slot", daemon=True)
        self._preparing.start()


def fits(slot: Optional[Slot], path: str, size: int) -> "TypeGuard[Slot]":
    return slot is not None and (slot.path, slot.size) == (path, size)
