"""NCCL's RAS service, asked over its socket: the status of every communicator of the job, from the inside.

Source: nccl `src/ras/client_support.cc` and docs/userguide/source/troubleshooting/ras.rst; JSON since 2.28.7. Every process of a
job listens at the same address of its node, and whichever answers has asked the others.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from io import BufferedRWPair
from typing import Any

__all__ = ["ras_address", "read_status"]

DEFAULT_ADDRESS = "localhost:28028"
# For the processes to answer one another in, seconds; NCCL gives each of two legs as much, and five more.
COLLECT_SECONDS = 2
ANSWER_SECONDS = 12.0
MOST_BYTES = 64 << 20


def ras_address(environment: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """Where the job's processes listen; None where NCCL_RAS_ENABLE turns them off."""
    if environment.get("NCCL_RAS_ENABLE") == "0":
        return None
    host, _, port = environment.get("NCCL_RAS_ADDR", DEFAULT_ADDRESS).rpartition(":")
    return (host.strip("[]") or "localhost", int(port)) if port.isdigit() else None


def read_status(address: tuple[str, int]) -> Any:
    """The status document. Raises OSError where nobody listens or answers in time, ValueError where it speaks no JSON."""
    with socket.create_connection(address, timeout=ANSWER_SECONDS) as connection, connection.makefile("rwb") as stream:
        ask(stream, "CLIENT PROTOCOL 2", "SERVER PROTOCOL")
        ask(stream, f"TIMEOUT {COLLECT_SECONDS}", "OK")
        ask(stream, "SET FORMAT json", "OK")
        stream.write(b"VERBOSE STATUS\n")
        stream.flush()
        return json.loads(stream.read(MOST_BYTES))


def ask(stream: BufferedRWPair, words: str, expected: str) -> None:
    stream.write(words.encode() + b"\n")
    stream.flush()
    answer = stream.readline(256).decode("utf-8", "replace").strip()
    if not answer.startswith(expected):
        raise ValueError(f"{words!r} was answered by {answer!r}")
