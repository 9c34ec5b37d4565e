"""What a person is told of a file that cannot be used: which one, why, and what to do."""

from __future__ import annotations

import errno
import os

__all__ = ["cannot_read", "cannot_write", "why_unread"]

READING = {
    errno.ENOENT: "no such file or directory; check the path",
    errno.ENOTDIR: "a part of the path is a file, not a directory; check the path",
    errno.EISDIR: "it is a directory; name a file in it",
    errno.EACCES: "permission denied; read it as a user who may, or copy it",
    errno.ELOOP: "a symbolic link that leads back to itself; name the file itself",
}
WRITING = {
    errno.ENOENT: "there is no such directory; make it, or name another file",
    errno.EISDIR: "it is a directory; name a file in it",
    errno.EACCES: "permission denied; name another file",
    errno.ENOSPC: "no space is left on its disk; name another file",
    errno.EROFS: "its file system is read-only; name another file",
    errno.ENAMETOOLONG: "its name is too long for the disk; name another file",
}


def cannot_read(path: str | os.PathLike[str], error: OSError | UnicodeDecodeError) -> str:
    """One line about `path`, which could not be read, or holds no UTF-8 text."""
    if isinstance(error, UnicodeDecodeError):
        return f"cannot read {path}: it is not UTF-8 text (byte {error.start}); name a text file"
    return f"cannot read {path}: {why_unread(error)}"


def why_unread(error: OSError) -> str:
    """Why a file could not be read, and what to do."""
    return READING.get(error.errno or 0, error.strerror or str(error))


def cannot_write(path: str | os.PathLike[str], error: OSError) -> str:
    """One line about `path`, which could not be written."""
    return f"cannot write {path}: {WRITING.get(error.errno or 0, error.strerror or str(error))}"
