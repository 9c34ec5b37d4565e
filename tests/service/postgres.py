"""A PostgreSQL of the test's own, on a free port of this machine."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.stories.stage import free_port

__all__ = ["postgres"]


def as_owner(command: list[str]) -> list[str]:
    """PostgreSQL refuses to run as root."""
    return ["su", "postgres", "-c", " ".join(command)] if os.geteuid() == 0 else command


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Runs one (with fsync) and gives the URL of its database; skips the test where there is none."""
    missing = [program for program in ("initdb", "pg_ctl") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    folder = Path(tempfile.mkdtemp(prefix="pitstop-pg-"))
    if os.geteuid() == 0:
        try:
            owner = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("there is no user postgres to run it under")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    data, port = folder / "data", free_port()
    options = f"'-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c max_connections=100'"
    try:
        subprocess.run(
            as_owner(["initdb", "-D", str(data), "-A", "trust", "-U", "pitstop", "--no-sync"]), check=True, capture_output=True
        )
        start = ["pg_ctl", "-D", str(data), "-l", str(folder / "log"), "-w", "-t", "60", "-o", options, "start"]
        subprocess.run(as_owner(start), check=True, stdout=subprocess.DEVNULL)
        try:
            yield f"postgresql://pitstop@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run(as_owner(["pg_ctl", "-D", str(data), "-m", "immediate", "stop"]), check=False, capture_output=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
