"""What the agent and the processes of a job tell one another: environment names, the store's control messages, error files.

The store process listens on a Unix socket in the job's state directory. Messages are JSON objects, one a line, answered likewise:

    {"op": "open", "generation": 3, "host": "127.0.0.1"}   -> {"ok": true, "generation": 3, "host": "127.0.0.1", "port": 40001}
    {"op": "watch", "processes": [[pid, start time], ...]} -> {"ok": true}     the ranks that keep the store alive
    {"op": "status"}                                       -> {"ok": true, "generation": 3, "host": ..., "port": ...}
    {"op": "end"}                                          -> {"ok": true}     and the store ends
    anything that cannot be done                           -> {"ok": false, "error": "..."}

`open` closes the store of the generation before: its holders are refused from then on. A generation not above the present one is
refused; the present one is answered again, so that asking twice is harmless.
"""

import json
import os
import socket
import time
import traceback
from typing import Any, Dict, Optional

__all__ = [
    "DOMAIN",
    "ERROR_FILE",
    "FORMATION",
    "GENERATION",
    "JOB",
    "JOINS",
    "MONITOR",
    "NODE",
    "RESUME",
    "STAGING",
    "connect",
    "error_document",
    "exchange",
    "listen",
    "parse_error_document",
]

MONITOR = "PITSTOP_MONITOR"
JOB = "PITSTOP_JOB"
NODE = "PITSTOP_NODE"
DOMAIN = "PITSTOP_DOMAIN"
GENERATION = "PITSTOP_GENERATION"
RESUME = "PITSTOP_RESUME"
STAGING = "PITSTOP_STAGING"
FORMATION = "PITSTOP_FORMATION"
JOINS = "PITSTOP_JOINS"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
MAX_MESSAGE_BYTES = 1 << 20


def short_address(path: str) -> "tuple[str, int]":
    """An address for a Unix socket at `path`, however long the path (a socket's address holds 107 bytes), and the open folder."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return "/proc/self/fd/%d/%s" % (folder, os.path.basename(path)), folder


def listen(path: str) -> socket.socket:
    """A listening Unix socket at `path`, readable by its owner only; a dead one's is replaced."""
    address, folder = short_address(path)
    try:
        if os.path.exists(path):
            os.unlink(path)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            server.bind(address)
        finally:
            os.umask(before)
        server.listen(8)
        return server
    finally:
        os.close(folder)


def connect(path: str, timeout_seconds: float) -> socket.socket:
    """Raises OSError where nobody listens at `path`."""
    address, folder = short_address(path)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.settimeout(timeout_seconds)
        client.connect(address)
    except OSError:
        client.close()
        raise
    finally:
        os.close(folder)
    return client


def exchange(path: str, message: Dict[str, Any], timeout_seconds: float = 5.0) -> Dict[str, Any]:
    """Send one message, return its answer. Raises OSError where nobody answers, ValueError where the answer is no JSON object."""
    with connect(path, timeout_seconds) as client:
        client.sendall(json.dumps(message).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            part = client.recv(65536)
            if not part or len(answer) > MAX_MESSAGE_BYTES:
                raise ConnectionError("the answer ended early")
            answer += part
    document = json.loads(answer)
    if not isinstance(document, dict):
        raise ValueError("the answer is not an object")
    return document


def error_document(error: BaseException, rank: Optional[int], step: Optional[int]) -> Dict[str, Any]:
    """torchelastic's error file for `error` (torch/distributed/elastic/multiprocessing/errors), with rank and step beside it."""
    information: Dict[str, Any] = {
        "py_callstack": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        "timestamp": str(int(time.time())),
        "raised_at": time.time(),
    }
    if rank is not None:
        information["rank"] = rank
    if step is not None:
        information["step"] = step
    return {"message": {"message": "%s: %s" % (type(error).__name__, error), "extraInfo": information}}


def parse_error_document(text: str) -> Optional[Dict[str, Any]]:
    """{"message", "callstack", "timestamp", "step"} of an error file; None where it is not one. Absent parts are None.

    "timestamp" is in seconds since the epoch: to the second from torchelastic's own handler, exact from ours.
    """
    try:
        document = json.loads(text)
    except ValueError:
        return None
    message = document.get("message") if isinstance(document, dict) else None
    if isinstance(message, str):
        return {"message": message, "callstack": None, "timestamp": None, "step": None}
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        return None
    information = message.get("extraInfo")
    information = information if isinstance(information, dict) else {}
    try:
        timestamp: Optional[float] = float(information.get("raised_at", information.get("timestamp")))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        timestamp = None
    step = information.get("step")
    return {
        "message": message["message"],
        "callstack": information.get("py_callstack") if isinstance(information.get("py_callstack"), str) else None,
        "timestamp": timestamp,
        "step": step if isinstance(step, int) else None,
    }
