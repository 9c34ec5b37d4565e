"""A model brought from storage into a node's shared memory once, for all trials of that node (papers.md 3.5: precursor jobs).

The cache is a folder, normally under /dev/shm: `KEY/files/...` with `KEY/manifest.json` (sizes and SHA-256), published by rename
only when whole; `KEY/refs/PID-START` for each process that uses it (a dead one's counts no more). A copy reserves its room.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ModelCache", "StagedModel", "StagingError", "model_key"]

BLOCK = 8 << 20
MANIFEST = "manifest.json"
RESERVED = "reserved"


class StagingError(Exception):
    """The model is not in shared memory; one line that says why. Trials can still read it from storage."""


@dataclass(frozen=True, slots=True)
class StagedModel:
    """`path` is the folder (or the file, where the source is one) that trials map. `reused`: it was there already."""

    key: str
    path: Path
    size: int
    reused: bool


def source_files(source: Path) -> dict[str, os.stat_result]:
    """Relative name -> status of every file of the model, in order. Raises StagingError."""
    try:
        if source.is_file():
            return {source.name: source.stat()}
        found = {str(path.relative_to(source)): path.stat() for path in sorted(source.rglob("*")) if path.is_file()}
    except OSError as problem:
        raise StagingError(f"the model {source} cannot be read: {problem.strerror}") from None
    if not found:
        raise StagingError(f"the model {source} has no file" if source.is_dir() else f"there is no model at {source}")
    return found


def model_key(source: Path, files: dict[str, os.stat_result]) -> str:
    """Names this very state of the model: another size or time of a file is another key."""
    digest = hashlib.sha256(str(source.absolute()).encode("utf-8", "surrogateescape"))
    for name, status in files.items():
        digest.update(f"\0{name}\0{status.st_size}\0{status.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def start_of(pid: int) -> str | None:
    """When `pid` was started, in the kernel's ticks; None where there is no such process (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


class ModelCache:
    """Models in `root`, at most `limit` bytes of them in all. Every change of what is there holds the folder's lock."""

    def __init__(self, root: Path, limit: int) -> None:
        self.root = root
        self.limit = limit
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def locked(self, name: str = "all") -> Iterator[None]:
        with (self.root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def entries(self) -> list[Path]:
        return [path for path in self.root.iterdir() if (path / MANIFEST).is_file() and ".part-" not in path.name]

    def holders(self, key: str) -> int:
        """Living processes that use the model; references of dead ones are removed."""
        count = 0
        for reference in (self.root / key / "refs").glob("*-*"):
            pid, _, start = reference.name.partition("-")
            if pid.isdigit() and start_of(int(pid)) == start:
                count += 1
            else:
                reference.unlink(missing_ok=True)
        return count

    def size_of(self, entry: Path) -> int:
        return sum(json.loads((entry / MANIFEST).read_text())["sizes"].values())

    def stage(self, source: Path, progress: Callable[[int, int], None] = lambda done, whole: None) -> StagedModel:
        """Bring `source` (a folder or a file) in, once, whoever asks first; the others wait and find it. Raises StagingError.

        Every byte that was copied is read back from shared memory and compared by SHA-256 before the model is published.
        """
        files = source_files(source)
        key = model_key(source, files)
        size = sum(status.st_size for status in files.values())
        entry = self.root / key
        with self.locked(key):  # the copy takes minutes: only those who want this very model wait for it
            with self.locked():
                if (entry / MANIFEST).is_file():
                    os.utime(entry)
                    return self.staged(source, key, size, reused=True)
                self.make_room(size)
                part = self.root / f"{key}.part-{os.getpid()}-{start_of(os.getpid())}"
                part.mkdir()
                (part / RESERVED).write_text(str(size))
            try:
                digests = copy_files(source, files, part / "files", progress)
                sizes = {name: status.st_size for name, status in files.items()}
                (part / "refs").mkdir()
                (part / MANIFEST).write_text(json.dumps({"source": str(source), "sizes": sizes, "sha256": digests}))
                part.rename(entry)
            except OSError as problem:
                if problem.errno == errno.ENOSPC:
                    raise StagingError(
                        f"shared memory at {self.root} is full while the model ({size:,} bytes) comes in"
                    ) from None
                raise StagingError(f"the model {source} cannot be staged: {problem.strerror}") from None
            finally:
                shutil.rmtree(part, ignore_errors=True)  # there no more once it is published
        return self.staged(source, key, size, reused=False)

    def staged(self, source: Path, key: str, size: int, *, reused: bool) -> StagedModel:
        files = self.root / key / "files"
        return StagedModel(key, files / source.name if source.is_file() else files, size, reused)

    def make_room(self, size: int) -> None:
        """Remove what died half-way, then unused models, the longest unused first. Raises StagingError if that is not enough."""
        coming = 0
        for part in self.root.glob("*.part-*"):
            pid, _, start = part.name.partition(".part-")[2].partition("-")
            if start_of(int(pid)) != start:
                shutil.rmtree(part, ignore_errors=True)
            else:
                coming += int((part / RESERVED).read_text())
        entries = sorted(self.entries(), key=lambda entry: entry.stat().st_mtime)
        used = coming + sum(self.size_of(entry) for entry in entries)
        for entry in entries:
            free = shutil.disk_usage(self.root).free
            if used + size <= self.limit and size <= free:
                return
            if self.holders(entry.name) == 0:
                used -= self.size_of(entry)
                shutil.rmtree(entry, ignore_errors=True)
        free = shutil.disk_usage(self.root).free
        if used + size > self.limit:
            raise StagingError(f"the model needs {size:,} bytes, {used:,} of {self.limit:,} in {self.root} are in use")
        if size > free:
            raise StagingError(f"the model needs {size:,} bytes, {self.root} has {free:,} free")

    def hold(self, key: str, pid: int) -> None:
        """Count process `pid` as a user of the model until it ends. Raises StagingError where the model is not there any more."""
        with self.locked():
            entry = self.root / key
            if not (entry / MANIFEST).is_file():
                raise StagingError(f"the model {key} is not staged in {self.root} any more")
            (entry / "refs" / f"{pid}-{start_of(pid)}").touch()
            os.utime(entry)


def digest_of(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def copy_files(
    source: Path, files: dict[str, os.stat_result], target: Path, progress: Callable[[int, int], None]
) -> dict[str, str]:
    """Copy and check; SHA-256 by name. Raises OSError, and StagingError where what was read changed or came back otherwise."""
    whole = sum(status.st_size for status in files.values())
    done = 0
    digests: dict[str, str] = {}
    for name, status in files.items():
        destination = target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with (source if source.is_file() else source / name).open("rb") as incoming, destination.open("wb") as outgoing:
            while block := incoming.read(BLOCK):
                digest.update(block)
                outgoing.write(block)
                done += len(block)
                progress(done, whole)
        if destination.stat().st_size != status.st_size:
            raise StagingError(f"{name} changed while it was read from {source}: {status.st_size:,} bytes expected")
        digests[name] = digest.hexdigest()
        if digest_of(destination) != digests[name]:
            raise StagingError(f"{name} came back otherwise from shared memory than it was read from {source}")
    return digests
