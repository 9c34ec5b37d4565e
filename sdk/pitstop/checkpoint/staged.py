"""One rank's state as staged in host memory: a file of the agent's folder in /dev/shm, written by the trainer, outliving it.

    header   HEADER_SIZE bytes: magic, version, phase, step, generation, sequence, lengths, and an Adler-32 of them
    index    JSON: rank, world, parts, and of each tensor dtype, shape, offset, bytes
    skeleton pickled structure, one a part; tensors are references into the index
    data     the tensors' bytes, each aligned to ALIGNMENT

A rank has two slots, used by turns, so that the newer whole one stands while the other is written, and a third one where the
other is being flushed at that moment: a save never waits for a disk. A slot counts as a copy of the state only once it is
sealed: `<slot>.seal` holds a CRC-32 of each part of the file, made by the host process after the write.
"""

import contextlib
import ctypes
import json
import mmap
import os
import struct
import threading
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

__all__ = [
    "ALIGNMENT",
    "Damaged",
    "Header",
    "Seal",
    "Slot",
    "checksums_of",
    "read_header",
    "read_seal",
    "seal",
    "slot_path",
    "slots_of",
    "verify",
]

MAGIC = b"PITSTOPS"
VERSION = 1
WRITING, WHOLE = 1, 2
# magic, version, phase, flags, rank, world, step, generation, sequence, index bytes, skeleton bytes, data bytes
FIELDS = struct.Struct("<8sIIIIIqQQQQQ")
CHECK = struct.Struct("<I")
HEADER_SIZE = 128
ALIGNMENT = 64
DURABLE = 1
SEALED = ".seal"
OWN, PEER = "rank", "peer"
TURNS = ("0", "1", "2")
# Of linux/mman.h, since Linux 5.14.
MADV_POPULATE_WRITE = 23


class Damaged(ValueError):
    """What is read is not what was written; the message says what does not fit."""


class Header(NamedTuple):
    """`durable`: the trainer wants it on disk; what is not is persisted only when its trainer ends."""

    phase: int
    durable: bool
    rank: int
    world: int
    step: int
    generation: int
    sequence: int
    index_bytes: int
    skeleton_bytes: int
    data_bytes: int

    @property
    def is_whole(self) -> bool:
        return self.phase == WHOLE

    @property
    def data_offset(self) -> int:
        return aligned(HEADER_SIZE + self.index_bytes + self.skeleton_bytes)

    @property
    def size(self) -> int:
        return self.data_offset + self.data_bytes


class Seal(NamedTuple):
    """`sums`: CRC-32 of index with skeletons, then of each tensor."""

    sequence: int
    step: int
    generation: int
    sums: Tuple[int, ...]


def aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def slot_path(folder: str, rank: int, turn: int, kind: str = OWN) -> str:
    """`kind`: OWN for a rank of this node, PEER for the copy of another node's rank."""
    return os.path.join(folder, "%s%d.%d" % (kind, rank, turn))


def pack_header(header: Header) -> bytes:
    fields = FIELDS.pack(
        MAGIC,
        VERSION,
        header.phase,
        DURABLE if header.durable else 0,
        header.rank,
        header.world,
        header.step,
        header.generation,
        header.sequence,
        header.index_bytes,
        header.skeleton_bytes,
        header.data_bytes,
    )
    return (fields + CHECK.pack(zlib.adler32(fields))).ljust(HEADER_SIZE, b"\0")


def read_header(content: "bytes | memoryview | mmap.mmap") -> Header:
    """Raises Damaged where the bytes are not the head of a staged state."""
    if len(content) < HEADER_SIZE:
        raise Damaged("too short for a staged state")
    fields = bytes(content[: FIELDS.size])
    if CHECK.unpack_from(content, FIELDS.size)[0] != zlib.adler32(fields):
        raise Damaged("the header's checksum does not fit")
    magic, version, phase, flags, rank, world, *rest = FIELDS.unpack(fields)
    if magic != MAGIC or version != VERSION:
        raise Damaged("not a staged state of version %d" % VERSION)
    header = Header(phase, bool(flags & DURABLE), rank, world, *rest)
    if header.size > len(content):
        raise Damaged("%d bytes are there of %d" % (len(content), header.size))
    return header


def address_of(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def populate(mapped: mmap.mmap) -> None:
    """Enter all pages now; the interpreter goes on meanwhile. Where the kernel cannot, each is entered when it is written."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(address_of(mapped)), ctypes.c_size_t(len(mapped)), MADV_POPULATE_WRITE)


class Slot:
    """A slot that is mapped to be written or read. `view` is its whole memory; close it after every view into it is gone."""

    def __init__(self, path: str, size: Optional[int] = None, placed: bool = True) -> None:
        """`size`: make it anew with this many bytes; None: open what is there. Raises OSError (ENOSPC where memory is short).

        `placed` False: what is there stands until `place`.
        """
        self.path = path
        if size is None:
            with open(path, "rb") as source:
                self._map = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY)
        else:
            descriptor = os.open(path + ".new", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                # Memory that is promised and not there would end the process with SIGBUS in the middle of a copy.
                os.posix_fallocate(descriptor, 0, size)
                self._map = mmap.mmap(descriptor, size)
                populate(self._map)
                if placed:
                    self.place()
            except OSError:
                if os.path.exists(path + ".new"):
                    os.unlink(path + ".new")
                raise
            finally:
                os.close(descriptor)
        self.view = memoryview(self._map)

    def place(self) -> None:
        """Take the place of the slot that stood there before. Raises OSError."""
        os.replace(self.path + ".new", self.path)

    @property
    def size(self) -> int:
        return len(self._map)

    @property
    def address(self) -> int:
        """Where in memory it begins; of one that is made to be written."""
        return address_of(self._map)

    @property
    def buffer(self) -> mmap.mmap:
        return self._map

    def begin(self, header: Header, index: bytes, skeletons: bytes) -> None:
        """From here on until `finish` the slot holds no state."""
        self.view[:HEADER_SIZE] = pack_header(header._replace(phase=WRITING))
        at = HEADER_SIZE + len(index)
        self.view[HEADER_SIZE:at] = index
        self.view[at : at + len(skeletons)] = skeletons

    def finish(self, header: Header) -> None:
        self.view[:HEADER_SIZE] = pack_header(header._replace(phase=WHOLE))

    def close(self) -> None:
        self.view.release()
        self._map.close()


def read_index(content: "memoryview", header: Header) -> Dict[str, Any]:
    """Raises Damaged where it is no index."""
    try:
        index = json.loads(bytes(content[HEADER_SIZE : HEADER_SIZE + header.index_bytes]))
        end = header.data_bytes
        for tensor in index["tensors"]:
            if tensor["offset"] < 0 or tensor["bytes"] < 0 or tensor["offset"] + tensor["bytes"] > end:
                raise Damaged("a tensor lies outside the data")
    except (ValueError, KeyError, TypeError) as problem:
        raise Damaged("the index cannot be read: %s" % problem) from None
    return dict(index)


def checksums_of(content: "memoryview", header: Header, index: Dict[str, Any]) -> Tuple[int, ...]:
    """CRC-32 of index with skeletons, then of each tensor."""
    head = content[HEADER_SIZE : HEADER_SIZE + header.index_bytes + header.skeleton_bytes]
    sums = [zlib.crc32(head)]
    base = header.data_offset
    for tensor in index["tensors"]:
        start = base + tensor["offset"]
        sums.append(zlib.crc32(content[start : start + tensor["bytes"]]))
    return tuple(sums)


def seal(path: str, content: "memoryview") -> Optional[Seal]:
    """Write the checksums of a whole slot beside it; None where the trainer wrote it anew meanwhile. Raises Damaged, OSError."""
    before = read_header(content)
    if not before.is_whole:
        return None
    sums = checksums_of(content, before, read_index(content, before))
    if read_header(content) != before:
        return None
    made = Seal(before.sequence, before.step, before.generation, sums)
    # Two threads may seal the same state; each does it whole.
    unfinished = "%s%s.%d" % (path, SEALED, threading.get_ident())
    with open(unfinished, "w") as target:
        json.dump(made._asdict(), target)
    os.replace(unfinished, path + SEALED)
    return made


def read_seal(path: str) -> Optional[Seal]:
    """None where the slot was never sealed or its seal cannot be read."""
    try:
        with open(path + SEALED) as source:
            document = json.load(source)
        return Seal(document["sequence"], document["step"], document["generation"], tuple(document["sums"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def verify(path: str, content: "memoryview") -> Header:
    """The header of a slot whose bytes are the sealed ones. Raises Damaged."""
    header = read_header(content)
    made = read_seal(path)
    if not header.is_whole:
        raise Damaged("it was being written")
    if made is None or (made.sequence, made.step, made.generation) != (header.sequence, header.step, header.generation):
        raise Damaged("it was never sealed")
    index = read_index(content, header)
    for number, (found, expected) in enumerate(zip(checksums_of(content, header, index), made.sums)):
        if found != expected:
            what = "the structure" if number == 0 else "tensor %d" % (number - 1)
            raise Damaged("the checksum of %s does not fit" % what)
    if len(index["tensors"]) + 1 != len(made.sums):
        raise Damaged("the seal is of another state")
    return header


def slots_of(folder: str) -> List[Tuple[str, str, Header]]:
    """(path, kind, header) of every whole slot in `folder`; what cannot be read is left."""
    found = []
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    for name in names:
        for kind in (OWN, PEER):
            stem, _, turn = name[len(kind) :].partition(".")
            if not name.startswith(kind) or not stem.isdigit() or turn not in TURNS:
                continue
            path = os.path.join(folder, name)
            try:
                with open(path, "rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    header = read_header(mapped)
            except (OSError, ValueError):
                continue
            if header.is_whole:
                found.append((path, kind, header))
    return found
