"""The host process of a node's staged state: seals it, copies it to peers, flushes it to disk, and outlives every rank.

Started by the agent beside the ranks (without an agent by the first rank), under the job's interpreter. Ranks write slots into
its folder and tell it; it works in the background, at a low priority, and never in a rank's way: a slot that it reads is locked
with flock(2), and a rank writes to another one meanwhile. When the process of a rank ends, whatever that rank had
staged is persisted. It ends when it is told to, or when nobody whom it serves is left and all is on disk.

    FOLDER/rank0.0 ...      slots (pitstop.checkpoint.staged)
    FOLDER/rank0.attached   JSON: who writes rank 0's slots, where they are to be flushed to, who holds copies
    FOLDER/host.sock        control: {"op": "staged" | "seal" | "drain" | "status" | "end"}, answered with what is known
    FOLDER/host.json        the address and the token under which peers reach us

    python -m pitstop.checkpoint.host FOLDER [--listen ADDRESS] [--own]      --own: remove FOLDER at the end
"""

import argparse
import contextlib
import fcntl
import importlib
import json
import mmap
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from pitstop import protocol
from pitstop.checkpoint import durable, staged
from pitstop.checkpoint.replica import Address, receive, send_copy
from pitstop.checkpoint.staged import OWN, Header
from pitstop.layout import start_time
from pitstop.store import is_zombie

__all__ = ["ADDRESS", "ATTACHED", "SOCKET", "Host", "main"]

SOCKET, ADDRESS, ATTACHED = "host.sock", "host.json", ".attached"
# Ranks that are started again find their state in memory, and a host that serves it.
GRACE_SECONDS = 60.0
LOOK_SECONDS = 0.25
RETRY_SECONDS = 5.0
NICENESS = 10


class BusyError(OSError):
    """A rank is writing the slot just now."""


class Attached(NamedTuple):
    """A rank that stages here. `folder`: the checkpoints' on disk; `peer`: who holds a copy, None for nobody."""

    rank: int
    pid: int
    started: int
    folder: str
    keep: int
    keep_every: int
    flush_own_only: bool
    peer: Optional[Address]

    @property
    def is_alive(self) -> bool:
        return start_time(self.pid) == self.started and not is_zombie(self.pid)


def attached_ranks(folder: str) -> Dict[int, Attached]:
    """Whoever attached; what cannot be read is left."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(ATTACHED):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(os.path.join(folder, name)) as source:
                document = json.load(source)
                peer = document.pop("peer")
                item = Attached(peer=None if peer is None else Address(*peer), **document)
                found[item.rank] = item
    return found


@contextlib.contextmanager
def reading(path: str) -> Iterator[Tuple[Any, Header]]:
    """A slot's memory, held against being written meanwhile. Raises OSError, Damaged."""
    with open(path, "rb") as source:
        try:
            # Never waited for: whoever writes may have been stopped in the middle of it.
            fcntl.flock(source.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError("it is being written") from None
        # A private mapping: torch wants memory that could be written, and this must never be.
        with mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            yield mapped, staged.read_header(mapped)


class Host:
    """What the process knows. `say` gets one line for people."""

    def __init__(self, folder: str, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.ending = False
        self.draining = False
        self.errors: List[str] = []
        self._say = say
        self._sent: Dict[int, int] = {}
        self._durable: Set[Tuple[int, int, int]] = set()
        self._not_before: Dict[int, float] = {}
        self._complete = True
        self.wake = threading.Event()
        self.rounds = threading.Condition()
        self.finished = 0

    def round(self) -> bool:
        """Seal, copy and flush what is new; whether everything that was to be done is done."""
        drained, ranks = self.draining, attached_ranks(self.folder)
        complete = self.seal_all()
        slots = [slot for slot in staged.slots_of(self.folder) if slot[1] == OWN and slot[2].rank in ranks]
        slots.sort(key=lambda slot: slot[2].sequence)
        newest = {header.rank: header.sequence for _, _, header in slots}
        for path, _, header in slots:
            if header.sequence == newest[header.rank]:
                self._copy(path, header, ranks[header.rank])
        wanted = []
        for path, kind, header in slots:
            item = ranks[header.rank]
            # Of a rank that ended, the older state too: the other ranks may not have come as far as its newest.
            if drained or not item.is_alive or (header.durable and header.sequence == newest[header.rank]):
                wanted.append((path, kind, header))
        return self._each(wanted, lambda path, header: self._flush(path, header, ranks[header.rank], drained)) and complete

    def seal_all(self) -> bool:
        return self._each(staged.slots_of(self.folder), self._seal)

    def _each(self, slots: List[Tuple[str, str, Header]], work: Callable[[str, Header], None]) -> bool:
        complete = True
        for path, _, header in slots:
            try:
                work(path, header)
            except BusyError:
                complete = False
            except (OSError, ValueError) as problem:
                complete = False
                self.tell("%s (step %d): %s" % (os.path.basename(path), header.step, problem))
        return complete

    def tell(self, text: str) -> None:
        """Say it, once while it stays the same."""
        if not self.errors or self.errors[-1] != text:
            self._say(text)
            self.errors = [*self.errors[-9:], text]

    def _seal(self, path: str, header: Header) -> None:
        made = staged.read_seal(path)
        if made is None or (made.sequence, made.step) != (header.sequence, header.step):
            with reading(path) as (mapped, _), memoryview(mapped) as view:
                staged.seal(path, view)

    def _copy(self, path: str, header: Header, item: Attached) -> None:
        """A peer that is gone costs its copy, and a word; training does not wait for it."""
        if item.peer is None or self._sent.get(header.rank, -1) >= header.sequence:
            return
        if time.monotonic() < self._not_before.get(-1 - header.rank, 0.0):
            return
        try:
            with reading(path) as (_, now):
                if now == header:
                    send_copy(path, header.sequence % 2, item.peer)
            self._sent[header.rank] = header.sequence
        except (OSError, ValueError) as problem:
            self._not_before[-1 - header.rank] = time.monotonic() + RETRY_SECONDS
            self.tell("no copy of rank %d at %s: %s" % (header.rank, item.peer.host, problem))

    def _flush(self, path: str, header: Header, item: Attached, now: bool) -> None:
        """One rank's state to disk, and the checkpoint published where it is the last one. Raises OSError, Damaged."""
        key = (header.rank, header.generation, header.step)
        if key in self._durable or (not now and time.monotonic() < self._not_before.get(header.rank, 0.0)):
            return
        try:
            with reading(path) as (mapped, found):
                if found != header:
                    return
                made = staged.read_seal(path)
                if made is None or made.sequence != header.sequence:
                    raise BusyError("it is sealed in the next round")
                with memoryview(mapped) as view:
                    staged.verify(path, view)
                self._write(mapped, header, item)
        except BusyError:
            raise
        except (OSError, ValueError):
            self._not_before[header.rank] = time.monotonic() + RETRY_SECONDS
            raise
        self._durable.add(key)

    def _write(self, mapped: Any, header: Header, item: Attached) -> None:
        import torch

        from pitstop.checkpoint.capture import contents_of

        torch.set_num_threads(1)
        parts = contents_of(mapped, header)
        tensors: Dict[str, Any] = {}
        for name, content in parts.items():
            if item.flush_own_only and name != "own":
                continue
            tensors[name + ".skeleton"] = torch.frombuffer(bytearray(content.skeleton), dtype=torch.uint8)
            tensors.update(("%s.%d" % (name, number), tensor) for number, tensor in enumerate(content.tensors))
        durable.flush_shard(item.folder, header.step, header.generation, header.rank, header.world, tensors)
        tensors.clear()
        parts.clear()
        name = durable.name_of(header.step, header.generation)
        for found in durable.checkpoints(item.folder):
            if found.name == name and found.is_complete:
                published = durable.publish(item.folder, found)
                self._say("step %d is durable%s" % (header.step, "" if published.done else ", " + published.why))
                durable.retire(item.folder, item.keep, item.keep_every)

    def status(self) -> Dict[str, Any]:
        on_disk = sorted(self._durable)
        copies = sorted(self._sent.items())
        folders = {item.folder for item in attached_ranks(self.folder).values()}
        complete = [
            {"step": found.step, "generation": found.generation, "path": os.path.join(folder, found.name)}
            for folder in sorted(folders)
            for found in durable.checkpoints(folder)
            if found.is_complete
        ]
        return {
            "ok": True,
            "pid": os.getpid(),
            "durable": on_disk,
            "copied": copies,
            "checkpoints": complete,
            "errors": self.errors,
        }

    def run(self) -> bool:
        """Until nobody is left or it is told to end; whether all that was staged is on disk."""
        seen = time.monotonic()
        done = True
        while True:
            woken = self.wake.wait(LOOK_SECONDS)
            self.wake.clear()
            draining = self.draining
            alive = any(item.is_alive for item in attached_ranks(self.folder).values())
            done = self._complete = self.round()
            with self.rounds:
                if woken or draining:
                    self.finished += 1
                if draining and not self.wake.is_set():
                    self.draining = False
                self.rounds.notify_all()
            now = time.monotonic()
            seen = now if alive else seen
            if self.ending or (now - seen > GRACE_SECONDS and (done or now - seen > 10 * GRACE_SECONDS)):
                return done

    def drain(self, seconds: float) -> bool:
        """Persist all that is staged; False where that failed or took longer. From any thread but the worker's."""
        deadline = time.monotonic() + seconds
        with self.rounds:
            # The round that runs now may have begun before the latest was staged.
            until = self.finished + 1
            self.draining = True
            self.wake.set()
            while self.draining or self.finished < until:
                left = deadline - time.monotonic()
                if left <= 0 or not self.rounds.wait(left):
                    return False
            return self._complete


def converse(client: socket.socket, host: Host) -> None:
    """Answer one local message."""
    with client, contextlib.suppress(OSError, ValueError), client.makefile("rwb") as stream:
        for line in stream:
            message = json.loads(line)
            operation = message.get("op")
            answer = host.status()
            if operation == "staged":
                host.wake.set()
            elif operation == "seal":
                # Beside the worker, which may be in a long flush.
                host.seal_all()
            elif operation == "drain":
                answer = dict(host.status(), ok=host.drain(float(message.get("seconds", 60.0))))
                answer.update(durable=host.status()["durable"], errors=host.errors)
            elif operation == "end":
                host.ending = True
                host.wake.set()
            elif operation != "status":
                answer = {"ok": False, "error": "no operation %r" % operation}
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()


def serve_peer(client: socket.socket, folder: str, token: str, host: Host) -> None:
    with client:
        client.settimeout(30.0)
        try:
            receive(client, folder, token)
        except (OSError, ValueError) as problem:
            host.tell("a peer's request failed: %s" % problem)


def import_torch() -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module("torch.distributed.checkpoint")


def accept(server: socket.socket, work: Callable[[socket.socket], None]) -> None:
    def loop() -> None:
        while True:
            try:
                client = server.accept()[0]
            except OSError:
                return
            threading.Thread(target=work, args=(client,), daemon=True).start()

    threading.Thread(target=loop, daemon=True).start()


def main(arguments: "Optional[List[str]]" = None) -> None:
    """Serve one staging folder."""
    parser = argparse.ArgumentParser(prog="pitstop.checkpoint.host")
    parser.add_argument("folder")
    parser.add_argument("--listen", default="127.0.0.1")
    parser.add_argument("--own", action="store_true")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # Whoever ends the ranks means the ranks; what they staged must still reach the disk.
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    os.makedirs(options.folder, mode=0o700, exist_ok=True)
    lock = os.open(os.path.join(options.folder, "host.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # Another one serves this folder.
        return

    def say(text: str) -> None:
        sys.stderr.write("pitstop checkpoints: %s\n" % text)
        sys.stderr.flush()

    host = Host(options.folder, say)
    token = secrets.token_hex(32)
    family = socket.AF_INET6 if ":" in options.listen else socket.AF_INET
    peers = socket.socket(family, socket.SOCK_STREAM)
    peers.bind((options.listen, 0))
    peers.listen(64)
    address = {"host": options.listen, "port": peers.getsockname()[1], "token": token}
    local = protocol.listen(os.path.join(options.folder, SOCKET))
    accept(local, lambda client: converse(client, host))
    accept(peers, lambda client: serve_peer(client, options.folder, token, host))
    described = os.path.join(options.folder, ADDRESS)
    with open(described + ".new", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as target:
        json.dump(address, target)
    os.replace(described + ".new", described)
    # The first flush would wait for it.
    threading.Thread(target=import_torch, daemon=True).start()
    done = host.run()
    for name in (SOCKET, ADDRESS):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(options.folder, name))
    if options.own and done:
        shutil.rmtree(options.folder, ignore_errors=True)
    elif not done:
        say("not everything is on disk; it stays in %s" % options.folder)
    os._exit(0 if done else 1)


if __name__ == "__main__":
    main()
