"""Copies of staged state in the memory of other nodes: where they go, and how they travel between host processes.

Messages are one JSON object a line over TCP, with the receiver's token, each answered likewise; the bytes of a slot follow their
line:

    {"op": "list", "token"}                                     -> {"ok": true, "slots": [...]}
    {"op": "get", "token", "name": "rank3.0"}                   -> {"ok": true, "bytes", "seal"}, bytes
    {"op": "put", "token", "name": "peer3.0", "bytes", "seal"}, bytes -> {"ok": true}
"""

import contextlib
import hmac
import json
import mmap
import os
import re
import socket
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from pitstop.checkpoint.staged import PEER, SEALED, Damaged, Seal, checksums_of, read_header, read_index, read_seal, slots_of

__all__ = ["Address", "Choice", "Place", "choose_peer", "fetch", "list_slots", "receive", "send_copy"]

NAME = re.compile(r"(rank|peer)\d{1,9}\.[0-2]")
TIMEOUT_SECONDS = 10.0
MAX_LINE = 1 << 16


class Address(NamedTuple):
    """A host process as its peers reach it."""

    host: str
    port: int
    token: str


class Place(NamedTuple):
    """Where a rank runs. `domain`: what fails together with its node (a rack, a power feed, the node itself)."""

    rank: int
    node: str
    domain: str


class Choice(NamedTuple):
    """`rank` None: nobody can hold a copy. `why` says what a person should know."""

    rank: Optional[int]
    why: str


def choose_peer(places: Sequence[Place], rank: int) -> Choice:
    """Whose node holds a copy of `rank`'s state: the next one in rank order outside the failure domain.

    Where all nodes are of one domain, the next other node; on one node alone there is no copy that would outlive it.
    """
    own = next(place for place in places if place.rank == rank)
    order = sorted(places)
    turn = order.index(own)
    others = order[turn + 1 :] + order[:turn]
    for place in others:
        if place.domain != own.domain and place.node != own.node:
            return Choice(place.rank, "on %s, outside %s" % (place.node, own.domain))
    for place in others:
        if place.node != own.node:
            return Choice(place.rank, "on %s, which is in %s too: no node outside of it" % (place.node, own.domain))
    return Choice(None, "there is no second node: the loss of %s loses its memory" % own.node)


def read_line(client: socket.socket) -> Dict[str, Any]:
    """One message, and not a byte of what follows it. Raises OSError, ValueError."""
    line = bytearray()
    while not line.endswith(b"\n"):
        part = client.recv(1)
        if not part or len(line) > MAX_LINE:
            raise ConnectionError("the message ended early")
        line += part
    document = json.loads(bytes(line))
    if not isinstance(document, dict):
        raise ValueError("not an object")
    return document


def write_line(client: socket.socket, document: Dict[str, Any]) -> None:
    client.sendall(json.dumps(document).encode() + b"\n")


@contextlib.contextmanager
def conversation(address: Address, message: Dict[str, Any], timeout: float) -> Iterator[socket.socket]:
    with socket.create_connection((address.host, address.port), timeout) as client:
        client.settimeout(timeout)
        write_line(client, dict(message, token=address.token))
        yield client


def answer_of(client: socket.socket) -> Dict[str, Any]:
    answer = read_line(client)
    if not answer.get("ok"):
        raise OSError(str(answer.get("error")))
    return answer


def seal_of(document: Any) -> Seal:
    """Raises ValueError."""
    try:
        return Seal(int(document["sequence"]), int(document["step"]), int(document["generation"]), tuple(document["sums"]))
    except (KeyError, TypeError) as problem:
        raise ValueError("no seal: %s" % problem) from None


def list_slots(folder: str) -> List[Dict[str, Any]]:
    """The sealed slots of a staging folder."""
    found = []
    for path, kind, header in slots_of(folder):
        made = read_seal(path)
        if made is not None and made.sequence == header.sequence and made.step == header.step:
            found.append(
                {
                    "name": os.path.basename(path),
                    "kind": kind,
                    "rank": header.rank,
                    "world": header.world,
                    "step": header.step,
                    "generation": header.generation,
                }
            )
    return found


def send_copy(path: str, turn: int, address: Address, timeout: float = TIMEOUT_SECONDS) -> int:
    """Put a sealed slot into a peer's memory; the bytes sent. Raises OSError where the peer is gone or has no room."""
    made = read_seal(path)
    with open(path, "rb") as source:
        size = os.fstat(source.fileno()).st_size
        if made is None:
            raise OSError("it was never sealed")
        with mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            rank = read_header(mapped).rank
        message = {"op": "put", "name": "%s%d.%d" % (PEER, rank, turn), "bytes": size, "seal": made._asdict()}
        with conversation(address, message, timeout) as client:
            client.sendfile(source)
            answer_of(client)
    return size


def fetch(address: Address, name: str, target: str, timeout: float = TIMEOUT_SECONDS) -> None:
    """Bring a slot out of a peer's memory to `target`, with its seal. Raises OSError, Damaged."""
    with conversation(address, {"op": "get", "name": name}, timeout) as client:
        answer = answer_of(client)
        store(client, target, int(answer["bytes"]), seal_of(answer["seal"]))


def store(client: socket.socket, target: str, size: int, made: Seal) -> None:
    """Read `size` bytes into `target`, whole and fitting its seal or not at all. Raises OSError, Damaged."""
    unfinished = target + ".part"
    try:
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, max(size, 1))
            with mmap.mmap(descriptor, size) as mapped, memoryview(mapped) as view:
                at = 0
                while at < size:
                    count = client.recv_into(view[at:])
                    if not count:
                        raise ConnectionError("the copy ended early")
                    at += count
                check(view, made)
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target + SEALED)
        os.replace(unfinished, target)
        with open(target + SEALED + ".new", "w") as seal_file:
            json.dump(made._asdict(), seal_file)
        os.replace(target + SEALED + ".new", target + SEALED)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)


def check(view: memoryview, made: Seal) -> None:
    header = read_header(view)
    if not header.is_whole or (header.sequence, header.step, header.generation) != made[:3]:
        raise Damaged("the copy is of another state than its seal")
    if checksums_of(view, header, read_index(view, header)) != made.sums:
        raise Damaged("the copy's checksum does not fit")


def receive(client: socket.socket, folder: str, token: str) -> None:
    """Serve one peer's message. Raises OSError, ValueError on what cannot be served."""
    message = read_line(client)
    try:
        if not same(str(message.get("token")), token):
            raise ValueError("the token is not ours")
        operation, name = message.get("op"), str(message.get("name", ""))
        if operation == "list":
            write_line(client, {"ok": True, "slots": list_slots(folder)})
            return
        if not NAME.fullmatch(name):
            raise ValueError("no slot %r" % name)
        if operation == "get":
            give(client, os.path.join(folder, name))
            return
        if operation != "put" or not name.startswith(PEER):
            raise ValueError("no operation %r" % operation)
        store(client, os.path.join(folder, name), int(message["bytes"]), seal_of(message["seal"]))
        write_line(client, {"ok": True})
    except (KeyError, TypeError, ValueError, OSError) as problem:
        with contextlib.suppress(OSError):
            write_line(client, {"ok": False, "error": "%s: %s" % (type(problem).__name__, problem)})
        raise


def give(client: socket.socket, path: str) -> None:
    made = read_seal(path)
    if made is None:
        raise ValueError("it was never sealed")
    with open(path, "rb") as source:
        write_line(client, {"ok": True, "bytes": os.fstat(source.fileno()).st_size, "seal": made._asdict()})
        client.sendfile(source)


def same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
