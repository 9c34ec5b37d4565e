"""Chaos on real training of a small GPT, under the real service: it resumes by itself, or stops for the right reason.

At SCALE=1 every fault is played; below that, as many as fit, the most different first. Nodes are network namespaces where root
may make them, else all are on loopback, where no link can be cut.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.training import Site, Training
from tests.node.namespaces import Namespaces, why_not
from tests.node.peer import wait_for
from tests.service.service_process import ServiceProcess

pytestmark = [
    pytest.mark.soak,
    pytest.mark.whole,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

SCALE = float(os.environ.get("SCALE", "1"))
ONE, TWO, FOUR = ("n1",), ("n1", "n2"), ("n1", "n2", "n3", "n4")
# From here on the agents know how long a step takes.
LEARNT = 10
# More steps than any test waits for.
ENDLESS = 1_000_000


def scaled(cases: list[Any], least: int) -> list[Any]:
    return cases[: max(least, round(SCALE * len(cases)))]


# (nodes, faults, how often it is started again)
HEALED = [
    (TWO, "3@10:kill", 1),
    (TWO, "2@10:stop", 1),
    (TWO, "0@10:kill 3@10:segfault", 1),
    (TWO, "twice:3@10:kill", 2),
    (TWO, "3@10:slow=1.5", 0),
    (FOUR, "2@10:stop 3@10:kill", 1),
    (ONE, "1@10:spin", 1),
    (ONE, "0@11:exit=3", 1),
]
STOPPED = [
    (TWO, "3@10:raise", "python_code_error"),
    (TWO, "0@10:corrupt", "checkpoint_corrupted"),
    (TWO, "always:2@10:full_disk", "checkpoint_write_failed"),
    (ONE, "always:1@10:raise_slowly", "python_code_error"),
]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    reason = why_not()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        yield Site(None)
        return
    # A subnet of its own: two runs on one machine would take each other's packets.
    hosts = Namespaces(f"pc{os.getpid() % 100000}", f"10.90.{os.getpid() % 256}", FOUR)
    try:
        hosts.lay()
        yield Site(hosts, hosts.uplink())
    finally:
        hosts.clear()


@pytest.fixture
def hosts(site: Site) -> Iterator[Namespaces]:
    """The nodes' links, whole again afterwards."""
    if site.hosts is None:
        pytest.skip(str(why_not()))
    yield site.hosts
    for node in site.hosts.nodes:
        site.hosts.heal(node)


@pytest.fixture
def service(tmp_path: Path, site: Site) -> Iterator[ServiceProcess]:
    folder = tmp_path / "service"
    folder.mkdir()
    with ServiceProcess(folder, host=site.address) as process:
        yield process


@pytest.fixture
def training(tmp_path: Path, site: Site, service: ServiceProcess) -> Iterator[Callable[..., Training]]:
    made: list[Training] = []

    def make(*nodes: str) -> Training:
        made.append(Training(tmp_path / "job", site, service, nodes))
        return made[-1]

    yield make
    for item in made:
        item.runs.end()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Iterator[str]:
    """The final parameters of a run that nothing happens to, and that nobody watches."""
    calm = Training(tmp_path_factory.mktemp("calm") / "job", site, None, TWO)
    calm.start()
    calm.end()
    yield calm.result.read_text()
    calm.runs.end()


def reasons(service: ServiceProcess) -> set[str]:
    return {item["reason"] for item in service.get("/api/v1/incidents?job=job")["items"]}


@pytest.mark.parametrize(("nodes", "faults", "restarts"), scaled(HEALED, 2))
def test_training_resumes_by_itself_and_ends_equal_to_the_last_bit(
    training: Callable[..., Training], undisturbed: str, nodes: tuple[str, ...], faults: str, restarts: int
) -> None:
    job = training(*nodes)
    job.start(faults)
    said = job.end()
    assert job.generation == restarts, said
    assert job.result.read_text() == undisturbed
    assert job.runs.processes() == []


@pytest.mark.parametrize(("nodes", "faults", "reason"), scaled(STOPPED, 1))
def test_what_no_restart_heals_is_stopped_within_its_budget_and_its_owner_told(
    training: Callable[..., Training], service: ServiceProcess, nodes: tuple[str, ...], faults: str, reason: str
) -> None:
    job = training(*nodes)
    job.start(faults)
    said = job.end(status=1)
    assert job.generation <= 3
    assert reason in reasons(service), said
    listed = service.get("/api/v1/incidents?job=job")["items"]
    assert service.get(f"/api/v1/incidents/{listed[0]['id']}")["notifications"], "somebody was told"
    assert job.runs.processes() == []


@pytest.mark.parametrize("lost", ["n2", "n1"])
def test_a_node_that_is_killed_is_left_out_and_training_goes_on_with_the_other(
    training: Callable[..., Training], service: ServiceProcess, lost: str
) -> None:
    job = training(*TWO)
    job.start()
    wait_for(lambda: job.step >= LEARNT, 300, "ten steps")
    job.nodes.kill(lost)
    (left,) = set(TWO) - {lost}
    said = job.end(left)
    assert job.result.exists(), said
    lost_nodes = {(item["reason"], item["node"]) for item in service.get("/api/v1/incidents?job=job")["items"]}
    assert ("node_failure", lost) in lost_nodes, said
    assert job.runs.processes() == []


def test_two_nodes_killed_at_once_are_left_out_together(training: Callable[..., Training], service: ServiceProcess) -> None:
    job = training(*FOUR)
    job.start()
    wait_for(lambda: job.step >= LEARNT, 300, "ten steps")
    job.nodes.kill("n3")
    job.nodes.kill("n4")
    said = job.end("n1", "n2")
    assert job.result.exists() and "node_failure" in reasons(service), said
    assert job.runs.processes() == []


@pytest.mark.parametrize(("cut", "other"), [("n2", "n1"), ("n1", "n2")], ids=["of a follower", "of the leader"])
def test_a_node_whose_link_is_cut_is_left_out_and_taken_back_when_it_heals(
    training: Callable[..., Training], service: ServiceProcess, hosts: Namespaces, cut: str, other: str
) -> None:
    job = training(*TWO)
    job.start(steps=ENDLESS)
    wait_for(lambda: job.step >= LEARNT, 300, "ten steps")
    before, stale = job.generation, job.nodes.pids(cut)
    hosts.inside(cut, "ip", "link", "set", "eth0", "down")
    alone = wait_for(lambda: job.trains(other, above=before), 300, f"going on without {cut}")
    assert "node_failure" in reasons(service)
    hosts.heal(cut)
    wait_for(lambda: job.trains(*TWO, above=alone), 300, f"going on with {cut} again")
    assert set(stale.values()).isdisjoint(job.runs.processes()), "what was cut off is ended"


def test_a_service_killed_in_the_middle_of_a_recovery_costs_no_bit(
    training: Callable[..., Training], service: ServiceProcess, undisturbed: str
) -> None:
    job = training(*TWO)
    job.start("3@10:kill")
    wait_for(lambda: service.get("/api/v1/incidents?job=job").get("items"), 120, "the incident")
    service.kill()
    service.start()
    said = job.end()
    assert job.generation == 1 and job.result.read_text() == undisturbed, said


def test_a_service_killed_while_a_node_is_being_lost_leaves_it_out_once(
    training: Callable[..., Training], service: ServiceProcess
) -> None:
    job = training(*TWO)
    job.start()
    wait_for(lambda: job.step >= LEARNT, 300, "ten steps")
    before = job.starts("n1")
    job.nodes.kill("n2")
    wait_for(lambda: service.get("/api/v1/incidents?job=job").get("items"), 120, "the incident")
    service.kill()
    service.start()
    said = job.end("n1")
    assert job.result.exists() and job.starts("n1") == before + 1, said
    assert "node_failure" in reasons(service), said
    assert job.runs.processes() == []


@pytest.mark.parametrize("nodes", [TWO, ONE])
def test_with_pitstop_dead_all_the_time_the_job_lives_on_as_it_would_without_it(
    tmp_path: Path, site: Site, undisturbed: str, nodes: tuple[str, ...]
) -> None:
    job = Training(tmp_path / "job", site, None, nodes)
    try:
        job.start("1@10:kill")
        said = job.end()
        assert job.generation == 1 and job.result.read_text() == undisturbed, said
    finally:
        job.runs.end()
