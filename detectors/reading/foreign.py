"""Inputs that hold no text, told from their first bytes; each note says what to do instead."""

from __future__ import annotations

__all__ = ["foreign_format", "noise"]

MAGIC = (
    (b"\x7fELF", "a program or a core dump: name the log instead"),
    (b"PK\x03\x04", "a zip archive or a checkpoint: unpack it, or name the log instead"),
    (b"\x89HDF", "an HDF5 file, not a log"),
    (b"\x93NUMPY", "a NumPy array, not a log"),
    (b"SQLite format 3\0", "a database, not a log"),
    (b"\x89PNG", "a picture, not a log"),
    (b"PAR1", "a Parquet file, not a log"),
    (b"%PDF", "a PDF file, not a log"),
    (b"\xfd7zXZ\0", "an xz archive: unpack it first"),
    (b"BZh", "a bzip2 archive: unpack it first"),
    (b"\x04\x22\x4d\x18", "an lz4 archive: unpack it first"),
    (b"LPKSHHRH", "a binary journal: write it out with journalctl -o json"),
)
TAR_OFFSET, TAR_MAGIC = 257, b"ustar"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
# No writer of logs prints these: not tab, newline, bell, form feed, escape and the like, nor NUL, which a torn write leaves.
CONTROLS = bytes([*range(1, 7), *range(14, 27), *range(28, 32), 127])
MAX_CONTROL_SHARE = 0.05


def foreign_format(head: bytes) -> str:
    """What `head` begins, where it is a known format that is no log; else nothing."""
    for magic, note in MAGIC:
        if head.startswith(magic):
            return note
    if head[TAR_OFFSET : TAR_OFFSET + len(TAR_MAGIC)] == TAR_MAGIC:
        return "a tar archive: unpack it first"
    return "UTF-16 text: convert it to UTF-8 first" if head.startswith(UTF16) else ""


def noise(head: bytes) -> str:
    """That `head` is no text, where too many of its bytes are none; else nothing."""
    written = head.replace(b"\0", b"")
    controls = len(written) - len(written.translate(None, CONTROLS))
    return "binary data: name the log instead" if controls > MAX_CONTROL_SHARE * len(written) else ""
