"""The process-group store of a job: a small process under the job's interpreter, started beside the ranks by the agent.

It outlives any rank and the agent. Each generation gets a TCPStore of its own, on a new port of one address; opening the next one
closes the one before, so that whoever still holds the old generation is refused. It is controlled through a Unix socket (see
`pitstop.protocol`) and ends when it is told to, or when the processes that it watches (the ranks, and the agent) are all gone.

The port is bound, and answered, before torch is imported: ranks that start at the same time wait in the backlog.

    python -m pitstop.store SOCKET
"""

import importlib.util
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from pitstop import protocol
from pitstop.layout import start_time

__all__ = ["Store", "main"]

# How long nobody may be there before the store ends: an agent may be between two generations.
GRACE_SECONDS = 10.0
LOOK_SECONDS = 1.0


class Store:
    """The present generation's TCPStore."""

    def __init__(self) -> None:
        self.generation = -1
        self.host = ""
        self.port = 0
        self.ending = False
        self._waiting: Optional[socket.socket] = None
        self._serving: Any = None
        self._lock = threading.Lock()
        self._watched: Set[Tuple[int, int]] = set()

    def answer(self, message: Dict[str, Any]) -> Dict[str, Any]:
        """Carry one control message out. Never raises on what a peer sends."""
        operation = message.get("op")
        try:
            if operation == "open":
                self.open(int(message["generation"]), str(message["host"]))
            elif operation == "watch":
                self._watched = {(int(pid), int(started)) for pid, started in message["processes"]}
            elif operation == "end":
                self.ending = True
            elif operation != "status":
                return {"ok": False, "error": "no operation %r" % operation}
        except (KeyError, TypeError, ValueError, OSError) as problem:
            return {"ok": False, "error": "%s: %s" % (type(problem).__name__, problem), "generation": self.generation}
        return {"ok": True, "generation": self.generation, "host": self.host, "port": self.port}

    def open(self, generation: int, host: str) -> None:
        """Bind the port of `generation` and refuse the one before. Raises ValueError for an old one, OSError without a port."""
        if generation < self.generation:
            raise ValueError("generation %d is over; the present one is %d" % (generation, self.generation))
        if generation == self.generation:
            return
        if importlib.util.find_spec("torch") is None:
            raise ValueError("no torch in %s" % sys.executable)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind((host, 0))
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
        with self._lock:
            if self._waiting is not None:
                self._waiting.close()
            self._serving = None
            self._waiting, self.generation, self.host, self.port = listener, generation, host, listener.getsockname()[1]

    def serve(self) -> None:
        """Start the TCPStore of a port that `open` bound, beside the conversation: the first time, this imports torch."""
        listener, self._waiting = self._waiting, None
        if listener is not None:
            threading.Thread(target=self._serve, args=(listener, self.generation), daemon=True).start()

    def _serve(self, listener: socket.socket, generation: int) -> None:
        from torch.distributed import TCPStore

        with self._lock:
            if generation != self.generation:
                listener.close()
                return
            self._serving = TCPStore(
                self.host, self.port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
            )

    def someone_is_there(self) -> bool:
        return any(start_time(pid) == started and not is_zombie(pid) for pid, started in self._watched)


def is_zombie(pid: int) -> bool:
    try:
        with open("/proc/%d/stat" % pid, "rb") as source:
            return source.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True


def run(server: socket.socket, store: Store) -> None:
    """Answer control messages until the store shall end."""
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    buffers: Dict[socket.socket, bytearray] = {}
    seen, looked = time.monotonic(), 0.0
    while not store.ending:
        ready = [key.fileobj for key, _ in selector.select(LOOK_SECONDS)]
        for source in ready:
            assert isinstance(source, socket.socket)
            if source is server:
                client = server.accept()[0]
                client.settimeout(2.0)
                selector.register(client, selectors.EVENT_READ)
                buffers[client] = bytearray()
                continue
            if not converse(source, buffers[source], store):
                selector.unregister(source)
                del buffers[source]
                source.close()
        store.serve()
        now = time.monotonic()
        if now - looked >= LOOK_SECONDS:
            looked = now
            if store.someone_is_there():
                seen = now
            elif now - seen > GRACE_SECONDS:
                return


def converse(client: socket.socket, buffer: bytearray, store: Store) -> bool:
    """Answer the whole lines that `client` sent; False when it is gone or misbehaves."""
    try:
        part = client.recv(65536)
        buffer += part
        while b"\n" in buffer:
            line, _, rest = bytes(buffer).partition(b"\n")
            buffer[:] = rest
            try:
                message = json.loads(line)
            except ValueError:
                message = {}
            answer = store.answer(message if isinstance(message, dict) else {})
            client.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:
        return False
    return bool(part) and len(buffer) <= protocol.MAX_MESSAGE_BYTES


def main(arguments: "Optional[List[str]]" = None) -> None:
    """Run the store on the Unix socket that the only argument names."""
    (path,) = sys.argv[1:] if arguments is None else arguments
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    server = protocol.listen(path)
    store = Store()
    try:
        run(server, store)
    finally:
        if os.path.exists(path):
            os.unlink(path)
        # Nothing is left to be kept, and a torch that is still being imported must not hold the end up.
        os._exit(0)


if __name__ == "__main__":
    main()
