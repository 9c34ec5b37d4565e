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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from evaluation.sources import ModelSource, StagingError, size_in

__all__ = ["ModelCache", "StagedModel"]

MANIFEST = "manifest.json"
RESERVED = "reserved"


@dataclass(frozen=True, slots=True)
class StagedModel:
    """`path` is the folder (or the file, where the source is one) that trials map. `reused`: it was there already."""

    key: str
    path: Path
    size: int
    reused: bool


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

    def stage(self, source: ModelSource, progress: Callable[[int, int | None], None] = lambda done, whole: None) -> StagedModel:
        """Bring `source` in, once, whoever asks first; the others wait and find it. Raises StagingError.

        What passed through our hands is read back from shared memory and compared by SHA-256 before the model is published, and
        so is every file whose digest the source names. `progress`: bytes there, and of how many where that is known.
        """
        key, size = source.key(), source.size()
        entry = self.root / key
        with self.locked(key):  # the copy takes minutes: only those who want this very model wait for it
            part = self.root / f"{key}.part-{os.getpid()}-{start_of(os.getpid())}"
            with self.locked():
                if (entry / MANIFEST).is_file():
                    os.utime(entry)
                    return self.staged(entry, source, reused=True)
                self.reserve(part, size or 0)

            def grown(done: int) -> None:
                if size is None:
                    with self.locked():
                        self.reserve(part, done)
                progress(done, size)

            try:
                files = part / "files"
                files.mkdir()
                read = source.bring(files, grown)
                digests = checked(files, read, source)
                (part / "refs").mkdir()
                sizes = {name: (files / name).stat().st_size for name in digests}
                (part / MANIFEST).write_text(json.dumps({"source": str(source), "sizes": sizes, "sha256": digests}))
                part.rename(entry)
            except OSError as problem:
                if problem.errno == errno.ENOSPC:
                    raise StagingError(f"shared memory at {self.root} is full while the model {source} comes in") from None
                raise StagingError(f"the model {source} cannot be staged: {problem.strerror}") from None
            finally:
                shutil.rmtree(part, ignore_errors=True)  # there no more once it is published
        return self.staged(entry, source, reused=False)

    def staged(self, entry: Path, source: ModelSource, *, reused: bool) -> StagedModel:
        files = entry / "files"
        path = next(files.iterdir()) if source.single else files
        return StagedModel(entry.name, path, self.size_of(entry), reused)

    def reserve(self, part: Path, size: int) -> None:
        """Keep room for the model that comes into `part`: `size` bytes of it in all. Raises StagingError."""
        self.make_room(size, part, size_in(part))
        part.mkdir(exist_ok=True)
        (part / RESERVED).write_text(str(size))

    def make_room(self, size: int, own: Path, there: int) -> None:
        """Remove what died half-way, then unused models, the longest unused first. Raises StagingError if that is not enough.

        `own` is the part that the room is for; `there`: bytes of it that take room already.
        """
        coming = 0
        for part in self.root.glob("*.part-*"):
            pid, _, start = part.name.partition(".part-")[2].partition("-")
            if start_of(int(pid)) != start:
                shutil.rmtree(part, ignore_errors=True)
            elif part != own:
                with suppress(FileNotFoundError):  # it was just given up
                    coming += int((part / RESERVED).read_text())
        entries = sorted(self.entries(), key=lambda entry: entry.stat().st_mtime)
        used = coming + sum(self.size_of(entry) for entry in entries)
        for entry in entries:
            if used + size <= self.limit and size <= shutil.disk_usage(self.root).free + there:
                return
            if self.holders(entry.name) == 0:
                used -= self.size_of(entry)
                shutil.rmtree(entry, ignore_errors=True)
        free = shutil.disk_usage(self.root).free + there
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


def checked(files: Path, read: Mapping[str, str], source: ModelSource) -> dict[str, str]:
    """SHA-256 by name of what lies in `files`. Raises StagingError where it is not what was read, or not what was named."""
    digests = {str(path.relative_to(files)): digest_of(path) or "" for path in sorted(files.rglob("*")) if path.is_file()}
    for name, digest in read.items():
        if digests.get(name) != digest:
            raise StagingError(f"{name} came back otherwise from shared memory than it was read from {source}")
    for name, digest in source.sha256.items():
        found = digests.get(name) if name else next(iter(digests.values())) if len(digests) == 1 else None
        if found != digest.lower():
            what = f"has the SHA-256 {found}" if found else "is not there"
            raise StagingError(
                f"{name or 'the file'} of {source} {what}, not {digest.lower()}: it is not the model that was named"
            )
    return digests
