"""Where a model is brought from: a path on storage, an http(s) address, or a command that fills a folder.

A source brings files into a folder and says which model it is; whether there is room is the caller's to judge, who hears of
every byte (see ModelCache in evaluation/staging.py).
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from evaluation.drivers.local import die_with_parent

__all__ = ["CommandSource", "Grown", "ModelSource", "PathSource", "StagingError", "UrlSource", "size_in"]

BLOCK = 8 << 20
URL_TIMEOUT_SECONDS = 60.0
LOOK_SECONDS = 0.2

Grown = Callable[[int], None]
"""Hears how many bytes lie in the target by now; raises StagingError where there is no room for more."""


class StagingError(Exception):
    """The model is not in shared memory; one line that says why. `again`: another try may help."""

    def __init__(self, why: str, *, again: bool = False) -> None:
        super().__init__(why)
        self.again = again


class ModelSource(Protocol):
    """Raises StagingError, and OSError for what the target's file system refuses."""

    @property
    def sha256(self) -> Mapping[str, str]:
        """Digests that files must have, by name relative to the model; "" stands for the only file."""

    @property
    def single(self) -> bool:
        """Whether the model is one file, and trials get that file's path rather than its folder's."""

    @property
    def mounted(self) -> bool:
        """Whether trials can read it where it lies, should there be no room in shared memory."""

    def key(self) -> str:
        """Names this very state of the model, as far as the source can tell."""

    def size(self) -> int | None:
        """Bytes of all files; None where only bringing it tells."""

    def bring(self, target: Path, grown: Grown) -> dict[str, str]:
        """Bring the files into the new folder `target`; the SHA-256 of those that passed through our hands, by name."""

    def __str__(self) -> str: ...


def named(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def expected(sha256: Mapping[str, str]) -> list[str]:
    return [f"{name}={digest}" for name, digest in sorted(sha256.items())]


@dataclass(frozen=True, slots=True)
class PathSource:
    """A folder or a file on storage that the node mounts. Another size or time of a file is another model."""

    path: Path
    sha256: Mapping[str, str] = field(default_factory=dict)
    mounted: bool = True

    def __str__(self) -> str:
        return str(self.path)

    @property
    def single(self) -> bool:
        return self.path.is_file()

    def files(self) -> dict[str, os.stat_result]:
        """Relative name -> status of every file of the model, in order."""
        try:
            if self.path.is_file():
                return {self.path.name: self.path.stat()}
            found = {str(path.relative_to(self.path)): path.stat() for path in sorted(self.path.rglob("*")) if path.is_file()}
        except OSError as problem:
            raise StagingError(f"the model {self.path} cannot be read: {problem.strerror}") from None
        if not found:
            raise StagingError(
                f"the model {self.path} has no file" if self.path.is_dir() else f"there is no model at {self.path}"
            )
        return found

    def key(self) -> str:
        states = [f"{name}\0{status.st_size}\0{status.st_mtime_ns}" for name, status in self.files().items()]
        return named(str(self.path.absolute()), *states, *expected(self.sha256))

    def size(self) -> int:
        return sum(status.st_size for status in self.files().values())

    def bring(self, target: Path, grown: Grown) -> dict[str, str]:
        digests: dict[str, str] = {}
        done = 0
        for name, status in self.files().items():
            destination = target / name
            destination.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256()
            origin = self.path if self.single else self.path / name
            with origin.open("rb") as incoming, destination.open("wb") as outgoing:
                while block := incoming.read(BLOCK):
                    digest.update(block)
                    outgoing.write(block)
                    done += len(block)
                    grown(done)
            if destination.stat().st_size != status.st_size:
                raise StagingError(f"{name} changed while it was read from {self.path}: {status.st_size:,} bytes expected")
            digests[name] = digest.hexdigest()
        return digests


@dataclass(frozen=True, slots=True)
class UrlSource:
    """One file behind an http(s) address. The address names the model, with its digest where one is given."""

    url: str
    sha256: Mapping[str, str] = field(default_factory=dict)
    single: bool = True
    mounted: bool = False

    def __str__(self) -> str:
        """Without what may be secret: user, password and query."""
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def key(self) -> str:
        return named(self.url, *expected(self.sha256))

    def size(self) -> None:
        return None

    @property
    def name(self) -> str:
        """The file's name: the last part of the address."""
        last = urllib.parse.unquote(urllib.parse.urlsplit(self.url).path.rstrip("/").rpartition("/")[2])
        return last if last not in ("", ".", "..") and "/" not in last and "\0" not in last else "model"

    def bring(self, target: Path, grown: Grown) -> dict[str, str]:
        digest, done = hashlib.sha256(), 0
        try:
            with (
                urllib.request.urlopen(self.url, timeout=URL_TIMEOUT_SECONDS) as incoming,
                (target / self.name).open("wb") as outgoing,
            ):
                whole = incoming.headers.get("Content-Length")
                while block := incoming.read(BLOCK):
                    done += len(block)
                    grown(done)
                    digest.update(block)
                    outgoing.write(block)
        except urllib.error.HTTPError as problem:
            raise StagingError(f"{self} answers {problem.code} {problem.reason}", again=problem.code >= 500) from None
        except (urllib.error.URLError, ConnectionError, TimeoutError) as problem:
            raise StagingError(f"{self} cannot be fetched: {getattr(problem, 'reason', problem)}", again=True) from None
        if whole is not None and whole.isdecimal() and int(whole) != done:
            raise StagingError(f"{self} broke off after {done:,} of {int(whole):,} bytes", again=True)
        return {self.name: digest.hexdigest()}


@dataclass(frozen=True, slots=True)
class CommandSource:
    """A command that fills the folder {target}, such as `aws s3 sync s3://runs/step-12000 {target}`. Its words name the model."""

    words: Sequence[str]
    sha256: Mapping[str, str] = field(default_factory=dict)
    single: bool = False
    mounted: bool = False

    def __str__(self) -> str:
        return " ".join(self.words)

    def key(self) -> str:
        return named(*self.words, *expected(self.sha256))

    def size(self) -> None:
        return None

    def bring(self, target: Path, grown: Grown) -> dict[str, str]:
        words = [word.format(target=target) for word in self.words]
        try:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent)
        except OSError as problem:
            raise StagingError(f"{words[0]} cannot be started: {problem.strerror}") from None
        try:
            while process.poll() is None:
                try:
                    process.wait(LOOK_SECONDS)
                except subprocess.TimeoutExpired:
                    grown(size_in(target))
        finally:
            end_session(process)
        if process.returncode:
            raise StagingError(f"{words[0]} ended with status {process.returncode} and brought no model", again=True)
        grown(size_in(target))
        if not any(path.is_file() for path in target.rglob("*")):
            raise StagingError(f"{words[0]} ended well and left no file in {{target}}")
        return {}


def size_in(folder: Path) -> int:
    """Bytes of all files in `folder`; 0 where it is not there."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # tools rename what is whole
            continue
    return total


def end_session(process: subprocess.Popen[bytes]) -> None:
    """What the command started ends with it, also where it was stopped for want of room."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
