"""The agent's side of the service, against the scripted peer."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.care_states import CommandArrived, Event, Heard
from node.link import Identity, ServiceLink
from node.service_client import ServiceClient
from node.spool import Spool
from tests.node.peer import Peer, wait_for


class SlowHeartbeats(ServiceClient):
    """A heartbeat of a running job waits for `go` before it is sent, as one that its thread was taken off the processor for."""

    about_to_send = threading.Event()
    go = threading.Event()

    def heartbeat(self, job: str, document: Mapping[str, Any]) -> None:
        if not document.get("ended"):
            self.about_to_send.set()
            assert self.go.wait(120)
        super().heartbeat(job, document)


def test_no_heartbeat_of_a_running_job_arrives_after_the_one_that_says_it_ended(peer: Peer, tmp_path: Path) -> None:
    def client() -> ServiceClient:
        return SlowHeartbeats(f"http://127.0.0.1:{peer.port}", None)

    identity = Identity("n1", "agent", "boot", {})
    running, ended = {"ended": False}, {"ended": True}
    link = ServiceLink(
        client, identity, "job", {"job": "job"}, Spool(tmp_path), lambda _: None, lambda _: None, lambda: running, after=0
    )
    link.start()
    wait_for(SlowHeartbeats.about_to_send.is_set)
    link.report_end(ended)
    wait_for(lambda: link._sending.is_set() or peer.posted("/heartbeat"))
    SlowHeartbeats.go.set()
    assert link.finish(60)
    wait_for(lambda: all(not thread.is_alive() for thread in link._threads if thread.name == "beat_loop"))
    assert peer.posted("/heartbeat") == [running, ended]


def test_a_batch_that_is_being_acknowledged_does_not_end_the_agent_that_waits_for_it(peer: Peer, tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    batch = spool.add(["{}"], {})
    # Its file goes before it is forgotten, by another thread than the one that waits.
    next(tmp_path.glob("*.batch")).unlink()
    link = ServiceLink(
        lambda: ServiceClient(f"http://127.0.0.1:{peer.port}", None),
        Identity("n1", "agent", "boot", {}),
        "job",
        {"job": "job"},
        spool,
        lambda _: None,
        lambda _: None,
        lambda: None,
        after=0,
    )
    assert not link.finish(0.01)
    spool.acknowledge(batch)
    assert link.finish(0.01)


def test_a_failure_whose_command_came_before_the_answer_is_not_asked_about_again(peer: Peer, tmp_path: Path) -> None:
    heard: list[Event] = []

    def decide(_failure: dict[str, Any]) -> None:
        row = {"id": 1, "job": "job", "generation": 1, "kind": "restart_ranks", "args": {}, "deadline": None}
        peer.rows.append(row)
        wait_for(lambda: any(isinstance(event, CommandArrived) for event in heard))

    peer.on_failure = decide
    link = ServiceLink(
        lambda: ServiceClient(f"http://127.0.0.1:{peer.port}", None),
        Identity("n1", "agent", "boot", {}),
        "job",
        {"job": "job"},
        Spool(tmp_path),
        heard.append,
        lambda _: None,
        lambda: None,
        after=0,
    )
    link.start()
    link.report_failure({"idempotency_key": "job:0"}, 0)
    wait_for(lambda: Heard(accepted=True) in heard)
    assert link._undecided is None
    assert link.finish(60)


def test_a_service_that_nobody_named_is_not_missed(tmp_path: Path) -> None:
    said: list[str] = []
    spool = Spool(tmp_path)
    spool.add(["{}"], {})
    link = ServiceLink(
        lambda: ServiceClient("http://127.0.0.1:9", None),
        Identity("n1", "agent", "boot", {}),
        "job",
        {"job": "job"},
        spool,
        lambda _: None,
        said.append,
        lambda: None,
        after=0,
        meant=False,
    )
    link.start()
    wait_for(lambda: said)
    assert not link.finish(60)
    assert said == ["no service answers (Connection refused); going on without one"]
