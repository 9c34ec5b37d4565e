"""Running code that a model wrote: no network, nothing writable but a scratch folder in memory, bounds on the rest.

bubblewrap (Debian package `bubblewrap`) gives new user, mount, PID, network and IPC namespaces; resource limits do the rest.
Where it is absent nothing is run: there is no unguarded fallback.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

__all__ = ["Ending", "Limits", "SandboxUnavailable", "Verdict", "run_sandboxed", "sandbox_command"]

# RLIMIT_NPROC does not bind root: its sandboxes run as users of no account, one for each process of ours.
FIRST_USER = 2_000_000
# Since then the limit counts the tasks of a user in its user namespace alone (user_namespaces(7), ucounts).
COUNTED_PER_NAMESPACE = (5, 14)
READ_ONLY = ("/usr", "/etc/alternatives", "/etc/ld.so.cache", "/opt")
LINKS = ("bin", "lib", "lib32", "lib64", "sbin")


class SandboxUnavailable(RuntimeError):
    """Code cannot be run safely here; the message says what to install."""


class Ending(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    KILLED = "killed at a limit"


@dataclass(frozen=True, slots=True)
class Limits:
    """`seconds` of wall clock and CPU; bytes; `processes` at once. `scratch_bytes` bounds files written in all."""

    seconds: float = 10.0
    memory_bytes: int = 1 << 30
    processes: int = 16
    scratch_bytes: int = 64 << 20
    output_bytes: int = 64 << 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one sample ended; `output` is the tail of what it printed, `detail` says which limit or status."""

    ending: Ending
    detail: str
    output: str
    seconds: float


def sandbox_command(program: Sequence[str], limits: Limits, bubblewrap: str, others: int) -> list[str]:
    """`program` in new namespaces: system folders and the interpreter's own read-only, /work in memory, an empty environment.

    The limit on processes is set inside, where neither our other tasks nor the last sandbox's, still being torn down, count;
    `others` is how many of them the kernel counts all the same.
    """
    folders = [*READ_ONLY, str(Path(program[0]).parent.parent)]
    binds = [word for folder in dict.fromkeys(folders) if Path(folder).exists() for word in ("--ro-bind", folder, folder)]
    links = [word for name in LINKS if Path("/", name).is_symlink() for word in ("--symlink", f"usr/{name}", f"/{name}")]
    real = [
        word
        for name in LINKS
        if Path("/", name).is_dir() and not Path("/", name).is_symlink()
        for word in ("--ro-bind", f"/{name}", f"/{name}")
    ]
    return [
        *(bubblewrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *binds,
        *links,
        *real,
        *("--dev", "/dev", "--proc", "/proc", "--size", str(limits.scratch_bytes), "--tmpfs", "/work"),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/work"),
        *("--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/work", "--setenv", "TMPDIR", "/work"),
        *("--setenv", "PYTHONDONTWRITEBYTECODE", "1", "--"),
        *("/usr/bin/prlimit", f"--nproc={limits.processes + others}", "--"),
        *program,
    ]


def other_tasks(user: int, kernel: str) -> int:
    """Threads of `user` outside a sandbox that its RLIMIT_NPROC counts under `kernel`, a release such as "6.1.0-18-amd64"."""
    release = re.match(r"(\d+)\.(\d+)", kernel)
    if release is not None and (int(release[1]), int(release[2])) >= COUNTED_PER_NAMESPACE:
        return 0
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == user:
                count += sum(1 for _ in (process / "task").iterdir())
        except OSError:
            continue
    return count


def limited(limits: Limits) -> Callable[[], None]:
    """What the child does before it becomes the sandbox: its resource limits."""
    seconds = max(1, int(limits.seconds) + 1)

    def apply() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.scratch_bytes, limits.scratch_bytes))
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    return apply


def tail(file: BinaryIO, limit: int) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - limit))
    return file.read(limit).decode("utf-8", "replace")


def run_sandboxed(program: str, limits: Limits | None = None, *, python: str = "/usr/bin/python3") -> Verdict:
    """Run Python source `program` to its end under `python`. PASSED is exit status 0. Raises SandboxUnavailable.

    The program goes in through a file descriptor, so that no file is left; what it starts dies with its PID namespace.
    """
    limits = limits or Limits()
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise SandboxUnavailable(
            "model-written code is run in bubblewrap only, which is not installed: apt-get install bubblewrap"
        )
    user = FIRST_USER + os.getpid() if os.getuid() == 0 else None
    others = other_tasks(os.getuid() if user is None else user, os.uname().release)
    started = time.monotonic()
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as printed:
        source.write(program.encode("utf-8", "surrogateescape"))
        source.seek(0)
        # Output beyond RLIMIT_FSIZE ends the program: a file, so that a flood fills no pipe of ours.
        process = subprocess.Popen(
            sandbox_command([python, "-I", "-"], limits, bubblewrap, others),
            stdin=source,
            stdout=printed,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=True,
            preexec_fn=limited(limits),
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        try:
            status = process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return Verdict(
                Ending.TIMED_OUT, f"still running after {limits.seconds:g} s", tail(printed, limits.output_bytes), limits.seconds
            )
        output = tail(printed, limits.output_bytes)
    seconds = time.monotonic() - started
    if status == 0:
        return Verdict(Ending.PASSED, "exit status 0", output, seconds)
    if output.startswith("bwrap: "):
        raise SandboxUnavailable(f"the sandbox does not start here: {output.splitlines()[0]}")
    # bubblewrap passes a signal on as 128 + its number.
    number = -status if status < 0 else status - 128
    if number in (signal.SIGKILL, signal.SIGXCPU, signal.SIGXFSZ):
        return Verdict(Ending.KILLED, f"ended by {signal.Signals(number).name}", output, seconds)
    return Verdict(Ending.FAILED, f"exit status {status}", output, seconds)
