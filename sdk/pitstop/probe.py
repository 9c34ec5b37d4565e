"""The probe worker: a warm process under the job's interpreter that takes part in the worlds of fault localisation.

It imports torch once and forks a process for each rank of each probe (30 ms), so that a probe shares no group, port or state with
a job or with another probe, and can always be ended: what hangs in a collective is killed at the deadline (gloo has no abort that
works). It is held by the agent over its standard input and output, JSON objects, one a line, and ends with its input:

    {"op": "alone", "id": "4.0.0", "backend": "gloo", "bytes": 1048576, "seconds": 5.0}
    {"op": "world", "id": "4.1.0", "backend": "gloo", "bytes": 1048576, "seconds": 2.0,
     "index": 0, "members": 2, "local": 1, "host": "10.0.0.1", "port": 40001}
    -> {"id": "4.1.0", "outcome": "passed|timed_out|error|wrong_data|void", "seconds": 0.012, "error": "", "port": 40002}

`alone`: compute, memory, and an allgather among processes of this node. `world`: an allgather with other nodes, of which the one
with index 0 runs the store. `port` is where this node would run the next store: one that nobody used before.

    python -m pitstop.probe ADDRESS
"""

import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from pitstop.probe_group import TorchGroup, check_alone, timed_allgather

__all__ = ["Worker", "interface_of", "main"]

# A rank is killed this long after its own limit.
GRACE_SECONDS = 0.3
# How bad: what one rank of a world says prevails over what another one says less of.
ORDER = ("passed", "timed_out", "error", "wrong_data", "void")
SIOCGIFADDR = 0x8915


def interface_of(address: str) -> Optional[str]:
    """The interface that has this IPv4 address; None where none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def bound(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    return listener


class Worker:
    """Runs one probe at a time. `address`: where other nodes reach this one."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._listener = bound(address)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def answer(self, message: Dict[str, Any]) -> Dict[str, Any]:
        """Carry one probe out. Never raises on what it is asked."""
        began = time.monotonic()
        try:
            if message["op"] == "alone":
                outcome, seconds, error = self._alone(message)
            else:
                outcome, seconds, error = self._world(message)
        except (KeyError, TypeError, ValueError, OSError) as problem:
            outcome, seconds, error = "void", time.monotonic() - began, "%s: %s" % (type(problem).__name__, problem)
        return {"id": message.get("id"), "outcome": outcome, "seconds": seconds, "error": error, "port": self.port}

    def _alone(self, message: Dict[str, Any]) -> Tuple[str, float, str]:
        host = "127.0.0.1"
        listener = bound(host)
        size = TorchGroup.local_size(str(message["backend"]))
        try:
            port = listener.getsockname()[1]
            return self._run(message, listener, [(rank, size, host, port) for rank in range(size)], True)
        finally:
            listener.close()

    def _world(self, message: Dict[str, Any]) -> Tuple[str, float, str]:
        index, local = int(message["index"]), int(message["local"])
        size = local * int(message["members"])
        places = [(index * local + rank, size, str(message["host"]), int(message["port"])) for rank in range(local)]
        if index:
            return self._run(message, None, places, False)
        if places[0][3] != self.port:
            raise ValueError("port %d is not open here any more" % places[0][3])
        listener, self._listener = self._listener, bound(self.address)
        try:
            return self._run(message, listener, places, False)
        finally:
            listener.close()

    def _run(
        self,
        message: Dict[str, Any],
        listener: Optional[socket.socket],
        places: "List[Tuple[int, int, str, int]]",
        alone: bool,
    ) -> Tuple[str, float, str]:
        seconds = float(message["seconds"])
        began = time.monotonic()
        children: Dict[int, int] = {}
        for place in places:
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                _rank(writing, message, listener if place[0] == 0 else None, place, alone, self.address)
            os.close(writing)
            children[reading] = pid
        found = _collected(children, began + seconds + GRACE_SECONDS)
        worst = max(found, key=lambda item: ORDER.index(item[0]))
        return worst[0], (worst[1] if worst[0] == "passed" else time.monotonic() - began), worst[2]


def _collected(children: "Dict[int, int]", deadline: float) -> "List[Tuple[str, float, str]]":
    """What the ranks (by the pipe that each writes to) said before they ended; who is late is killed. The others of a rank that
    failed cannot pass any more: they get a moment to say why, not the whole time."""
    texts = dict.fromkeys(children, b"")
    waiting = set(children)
    found: List[Tuple[str, float, str]] = []
    try:
        while waiting:
            left = deadline - time.monotonic()
            ready = select.select(list(waiting), [], [], left)[0] if left > 0 else []
            if not ready:
                break
            for reading in ready:
                part = os.read(reading, 65536)
                texts[reading] += part
                if not part:
                    waiting.discard(reading)
                    found.append(_told(texts[reading], os.waitpid(children.pop(reading), 0)[1]))
                    os.close(reading)
                    if found[-1][0] != "passed":
                        deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    finally:
        for reading, pid in children.items():
            os.close(reading)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    late = ("timed_out", 0.0, "still waiting at the deadline")
    return found + [_told(texts[reading], 0) if texts[reading] else late for reading in children]


def _told(text: bytes, status: int) -> Tuple[str, float, str]:
    """What a rank that ended with this wait status wrote."""
    try:
        outcome, seconds, error = json.loads(text)
        return str(outcome), float(seconds), str(error)
    except (ValueError, TypeError):
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return "void", 0.0, "the probe was killed by signal %d" % number if number else "the probe ended without a result"


def _rank(
    writing: int,
    message: Dict[str, Any],
    listener: Optional[socket.socket],
    place: "Tuple[int, int, str, int]",
    alone: bool,
    address: str,
) -> None:
    """The forked process of one rank; never returns."""
    rank, size, host, port = place
    try:
        interface = interface_of("127.0.0.1" if alone else address)
        if interface is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
            if not alone:
                os.environ["NCCL_SOCKET_IFNAME"] = interface
        group = TorchGroup(str(message["backend"]), rank, size, host, port, str(message["id"]), listener)
        try:
            result = (check_alone(group) if alone else "") or timed_allgather(
                group, int(message["bytes"]), float(message["seconds"])
            )
        finally:
            group.abort()
        told: Tuple[str, float, str] = ("wrong_data", 0.0, result) if isinstance(result, str) else ("passed", result, "")
    except BaseException as problem:
        text = "%s: %s" % (type(problem).__name__, str(problem).splitlines()[0] if str(problem) else "")
        late = any(word in text.lower() for word in ("timed out", "timeout"))
        told = ("timed_out" if late else "error", 0.0, text[:500])
    os.write(writing, json.dumps(told).encode())
    # Nothing is left to be kept; destructors of a group whose peer is gone may hang.
    os._exit(0)


def main(arguments: "Optional[List[str]]" = None) -> None:
    """Answer probes until the input ends."""
    (address,) = sys.argv[1:] if arguments is None else arguments
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    TorchGroup.warm()
    worker = Worker(address)

    def say(document: Dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    say({"ready": True, "port": worker.port, "backend": TorchGroup.best_backend()})
    for line in sys.stdin:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict):
            say(worker.answer(message))
    # Nothing is left to be kept, and taking torch down takes its time.
    os._exit(0)


if __name__ == "__main__":
    main()
