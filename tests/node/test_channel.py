"""Connections between agents: what is said arrives, and a peer that falls silent is told from one that is quiet."""

from __future__ import annotations

import queue
import socket
from collections.abc import Mapping
from typing import Any

from node.channel import Connection, Listener, dial, is_own_address
from tests.node.peer import wait_for


def test_what_is_said_arrives_and_the_end_of_the_other_side_is_told() -> None:
    accepted: queue.SimpleQueue[Connection] = queue.SimpleQueue()
    listener = Listener("127.0.0.1", 0, accepted.put)
    heard: list[Mapping[str, Any]] = []
    lost: list[str] = []
    ours = dial("127.0.0.1", listener.port)
    theirs = accepted.get(timeout=10)
    theirs.start(lambda _, message: heard.append(message), lambda _, why: lost.append(why))
    ours.start(lambda *_: None, lambda *_: None, lambda: {"op": "beat", "step": 3})
    assert ours.send({"op": "join"})
    wait_for(lambda: {"op": "join"} in heard and {"op": "beat", "step": 3} in heard, 10)
    ours.close()
    wait_for(lambda: lost, 10)
    assert not ours.send({"op": "join"})
    listener.close()


def test_a_peer_that_says_nothing_as_behind_a_cut_link_is_lost() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        connection = dial(*server.getsockname())
        silent, _ = server.accept()
        lost: list[str] = []
        connection.start(lambda *_: None, lambda _, why: lost.append(why))
        wait_for(lambda: lost, 20)
        assert lost == ["nothing was heard for 2 s"]
        silent.close()


def test_an_address_is_ours_where_it_can_be_bound() -> None:
    assert is_own_address("127.0.0.1")
    assert not is_own_address("192.0.2.1")
