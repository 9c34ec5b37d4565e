"""Files that appear whole in a folder, told at once: inotify, by way of the C library."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Callable
from pathlib import Path

__all__ = ["FolderEvents"]

# <sys/inotify.h>
IN_CLOSE_WRITE = 0x00000008
IN_MOVED_TO = 0x00000080
EVENT = struct.Struct("iIII")
BUFFER_BYTES = 1 << 16


class FolderEvents:
    """Tells `on_file` the name of every file that was written and closed in `folder`, or moved into it; from a thread of its own.

    Only changes made on this machine are told. Raises OSError where the system watches no more folders.
    """

    def __init__(self, folder: Path, on_file: Callable[[str], None]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = library.inotify_init1(os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        watch = library.inotify_add_watch(self._descriptor, os.fsencode(folder), IN_CLOSE_WRITE | IN_MOVED_TO)
        if watch < 0:
            os.close(self._descriptor)
            raise OSError(ctypes.get_errno(), f"inotify_add_watch {folder}")
        self._end_reader, self._end_writer = os.pipe2(os.O_CLOEXEC)
        self._on_file = on_file
        threading.Thread(target=self._run, name="folder-events", daemon=True).start()

    def close(self) -> None:
        os.close(self._end_writer)

    def _run(self) -> None:
        with os.fdopen(self._descriptor, "rb", buffering=0), os.fdopen(self._end_reader, "rb", buffering=0):
            while True:
                ready, _, _ = select.select([self._descriptor, self._end_reader], [], [])
                if self._end_reader in ready:
                    return
                for name in names_in(os.read(self._descriptor, BUFFER_BYTES)):
                    self._on_file(name)


def names_in(block: bytes) -> list[str]:
    """The file names in a block of inotify events."""
    names, at = [], 0
    while at + EVENT.size <= len(block):
        _, _, _, length = EVENT.unpack_from(block, at)
        at += EVENT.size
        name = block[at : at + length].rstrip(b"\0")
        at += length
        if name:
            names.append(os.fsdecode(name))
    return names
