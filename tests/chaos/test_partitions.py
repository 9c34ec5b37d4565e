"""A job whose nodes are cut off from one another, with the service on one side or in reach of all: never do two halves go on.

Real ranks that write one checkpoint and one ledger; nodes are network namespaces.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.node.namespaces import Namespaces, why_not
from tests.node.peer import Peer, Runs, wait_for
from tests.node.several_nodes import Nodes
from tests.service.service_process import ServiceProcess

pytestmark = [
    pytest.mark.soak,
    pytest.mark.whole,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

NAMES = ("n1", "n2", "n3")
# For so long ranks wait for one another.
PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Line:
    """One finished step of one group."""

    generation: int
    store: str
    step: int


class Counting:
    """The job of groups.py, a rank on each node, and the service at `uplink`."""

    def __init__(self, folder: Path, hosts: Namespaces, uplink: str, service: ServiceProcess) -> None:
        folder.mkdir()
        self.hosts, self.uplink, self.service = hosts, uplink, service
        self.ledger, self.finish = folder / "ledger", folder / "finish"
        self.runs = Runs(folder, service.url, python=sys.executable)
        self.runs.environment["PITSTOP_TOKEN_FILE"] = str(service.data_dir / "admin.token")
        self.runs.environment |= {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        self.nodes = Nodes(self.runs, Peer(), Path(__file__).with_name("groups.py"), self.finish)
        self.nodes.rendezvous = f"{hosts.address('n1')}:29400"

    def start(self) -> None:
        for name in NAMES:
            inside = ("ip", "netns", "exec", self.hosts.namespace(name))
            arguments = (str(self.ledger), str(self.ledger.with_name("checkpoint")), str(PATIENCE_SECONDS))
            self.nodes.start(name, *arguments, nnodes=f"1:{len(NAMES)}", ranks=1, inside=inside, flags=("--no-spare",))
        wait_for(lambda: len(self.lines) >= 30, 300, "thirty steps")

    def cut(self, side: tuple[str, ...]) -> None:
        """Part the nodes of `side` from the others, and from the service."""
        others = [self.hosts.address(name) for name in NAMES if name not in side]
        for name in side:
            self.hosts.part(name, *others, self.uplink)

    def cut_between(self, one: str, *others: str) -> None:
        """Part nodes from one another and from nobody else."""
        self.hosts.part(one, *(self.hosts.address(name) for name in others))

    def heal(self) -> None:
        for name in self.hosts.nodes:
            self.hosts.heal(name)

    @property
    def lines(self) -> list[Line]:
        text = self.ledger.read_text() if self.ledger.exists() else ""
        words = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [Line(int(generation), store, int(step)) for generation, store, step in words]

    def trained_since(self, count: int, above: int) -> int | None:
        """The generation, above the one given, of the last line, once so many lines were added."""
        lines = self.lines
        return lines[-1].generation if len(lines) >= count and lines[-1].generation > above else None

    def is_whole(self, above: int) -> bool:
        """Whether all nodes run in the generation, above the one given, of the last line."""
        generation = self.lines[-1].generation
        return generation > above and all(self.nodes.running(name, generation) for name in NAMES)

    def incidents(self) -> list[dict[str, Any]]:
        listed = self.service.get("/api/v1/incidents?job=job")["items"]
        return [self.service.get(f"/api/v1/incidents/{item['id']}") for item in listed]

    def end_well(self) -> None:
        self.finish.touch()
        said = {name: self.nodes.agents[name].communicate(timeout=120)[1] for name in NAMES}
        self.check_ledger()
        assert [self.nodes.agents[name].returncode for name in NAMES] == [0, 0, 0], said
        wait_for(lambda: self.runs.processes() == [], 60, "the end of every process")

    def check_ledger(self) -> None:
        """One group to a generation, and none goes on once a newer one has begun."""
        groups: dict[int, set[str]] = {}
        for line in self.lines:
            groups.setdefault(line.generation, set()).add(line.store)
        assert all(len(stores) == 1 for stores in groups.values()), groups
        generations = [line.generation for line in self.lines]
        assert generations == sorted(generations), "two groups at once"


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[Namespaces, str]]:
    reason = why_not()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    hosts = Namespaces(f"pp{os.getpid() % 100000}", f"10.91.{os.getpid() % 256}", NAMES)
    try:
        hosts.lay()
        yield hosts, hosts.uplink()
    finally:
        hosts.clear()


@pytest.fixture
def counting(tmp_path: Path, site: tuple[Namespaces, str]) -> Iterator[Counting]:
    hosts, uplink = site
    folder = tmp_path / "service"
    folder.mkdir()
    with ServiceProcess(folder, host=uplink) as service:
        job = Counting(tmp_path / "job", hosts, uplink, service)
        yield job
        job.heal()
        job.runs.end()


@pytest.mark.parametrize("beside", ["n1", "n2"], ids=["the leader is beside the service", "a follower is beside the service"])
def test_of_two_halves_of_a_job_one_goes_on_and_all_of_it_when_they_meet_again(counting: Counting, beside: str) -> None:
    counting.start()
    counting.cut(tuple(name for name in NAMES if name != beside))
    before = len(counting.lines)
    half = wait_for(lambda: counting.trained_since(before + 50, above=0), 300, "one half that goes on")
    if beside == "n2":
        # The others, two of three, have gone on by themselves; the service knows nothing of it.
        wait_for(lambda: any(item["state"] == "waiting_for_approval" for item in counting.incidents()), 300, "a question")
    counting.heal()
    wait_for(lambda: counting.is_whole(above=half), 300, "the whole job")
    counting.end_well()


@pytest.mark.parametrize(
    ("one", "others", "goes_on"),
    [("n1", ("n2", "n3"), ("n2", "n3")), ("n2", ("n1", "n3"), ("n1", "n3")), ("n1", ("n2",), ("n1", "n3"))],
    ids=["the leader from the others", "a follower from the others", "the leader from one follower"],
)
def test_where_nodes_do_not_reach_one_another_and_the_service_all_of_them_the_larger_side_goes_on_and_people_are_told_why(
    counting: Counting, one: str, others: tuple[str, ...], goes_on: tuple[str, ...]
) -> None:
    counting.start()
    counting.cut_between(one, *others)
    before = len(counting.lines)
    side = wait_for(lambda: counting.trained_since(before + 50, above=0), 300, "one side that goes on")
    assert [name for name in NAMES if counting.nodes.running(name, side)] == list(goes_on)
    wait_for(lambda: [item["state"] for item in counting.incidents()] == ["verified"], 300, "the end of the recovery")
    (incident,) = counting.incidents()
    assert incident["reason"] == "rendezvous_store_unreachable" and "n1 and n2" in incident["summary"]
    counting.heal()
    wait_for(lambda: counting.is_whole(above=side), 300, "the whole job")
    counting.end_well()
