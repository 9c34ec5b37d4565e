"""Localisation on real probe workers in eight network namespaces, with real faults."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from recovery.localization.probes import Localization, Verdict
from recovery.localization.rounds import Effort
from tests.node.fabric import KILL, STOP, Fabric, build_liar, wait_for, why_not

SCALE = float(os.environ.get("SCALE", "0.1"))
# 20 at full size; once each where the size is a tenth.
REPEATS = max(1, round(20 * SCALE**1.3))
# A healthy set of nodes is looked at for as long as time allows; here a few rounds are enough.
EFFORT = Effort(screening=6, quiet_seconds=0.0, confirmation=12)
BAD = "n3"


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    reason = why_not()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    fabric = Fabric(tmp_path_factory.mktemp("fabric"))
    try:
        fabric.up()
        yield fabric
    finally:
        fabric.down()


@contextmanager
def dead_nic(fabric: Fabric) -> Iterator[None]:
    fabric.inside(BAD, "ip", "link", "set", "eth0", "down")
    yield


@contextmanager
def lossy(fabric: Fabric) -> Iterator[None]:
    fabric.drop(BAD, "numgen random mod 10 < 4")
    yield


@contextmanager
def slow_link(fabric: Fabric) -> Iterator[None]:
    fabric.inside(
        BAD, *["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "60mbit", "burst", "32kbit", "latency", "800ms"]
    )
    yield


@contextmanager
def bad_link(fabric: Fabric) -> Iterator[None]:
    fabric.drop(BAD, f"ip saddr {fabric.address('n4')}")
    fabric.drop("n4", f"ip saddr {fabric.address(BAD)}")
    yield
    fabric.heal("n4")


def stopped(fabric: Fabric) -> AbstractContextManager[None]:
    return fabric.signalling(BAD, STOP)


def killed(fabric: Fabric) -> AbstractContextManager[None]:
    return fabric.signalling(BAD, KILL, times=1)


@contextmanager
def wrong_data(fabric: Fabric) -> Iterator[None]:
    library = build_liar(fabric.folder)
    fabric.workers[BAD].close()
    fabric.start(BAD, f"LD_PRELOAD={library}")
    wait_for(lambda: (fabric.workers[BAD].keep_warm(), fabric.workers[BAD].backend)[1], 300)
    try:
        yield
    finally:
        fabric.workers[BAD].close()
        fabric.start(BAD)
        wait_for(lambda: (fabric.workers[BAD].keep_warm(), fabric.workers[BAD].backend)[1], 300)


def blames(found: Localization, *verdicts: Verdict) -> bool:
    """Whether the bad node, and nothing else, is blamed."""
    named = {*found.named(Verdict.FAULTY), *found.named(Verdict.SLOW)}
    return named == {BAD} and found.nodes[BAD].verdict in verdicts and not found.links and not found.groups


def only_the_link(found: Localization) -> bool:
    return set(found.links) == {(BAD, "n4")} and not found.isolate and not found.named(Verdict.SLOW)


def nobody(found: Localization) -> bool:
    return not found.named(Verdict.FAULTY) and not found.named(Verdict.SLOW) and not found.links and not found.groups


FAULTS: dict[str, tuple[Callable[[Fabric], AbstractContextManager[None]], Callable[[Localization], bool]]] = {
    "dead_nic": (dead_nic, lambda found: blames(found, Verdict.FAULTY)),
    "lossy": (lossy, lambda found: blames(found, Verdict.FAULTY, Verdict.SLOW)),
    "slow_link": (slow_link, lambda found: blames(found, Verdict.SLOW, Verdict.FAULTY)),
    "bad_link": (bad_link, only_the_link),
    "stopped": (stopped, lambda found: blames(found, Verdict.FAULTY)),
    "killed": (killed, nobody),
    "wrong_data": (wrong_data, lambda found: blames(found, Verdict.FAULTY)),
}


def strike(fabric: Fabric, kind: str) -> tuple[bool, float, str]:
    """Whether the verdict was right, its seconds, and what it said."""
    fault, is_right = FAULTS[kind]
    with fault(fabric):
        found, seconds = fabric.localize(EFFORT)
    fabric.heal(BAD)
    return is_right(found), seconds, found.summary


@pytest.mark.acceptance
@pytest.mark.parametrize("kind", ["bad_link"])
def test_the_fault_is_named_and_nothing_else(fabric: Fabric, kind: str) -> None:
    right, _, said = strike(fabric, kind)
    assert right, said


@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.parametrize("kind", list(FAULTS))
def test_every_fault_is_named_every_time(fabric: Fabric, kind: str) -> None:
    wrong = [said for right, _, said in (strike(fabric, kind) for _ in range(REPEATS)) if not right]
    assert not wrong


@pytest.mark.soak
@pytest.mark.whole
def test_healthy_nodes_are_never_blamed(fabric: Fabric) -> None:
    """1,000 rounds at full size."""
    rounds = 0
    while rounds < 1000 * SCALE:
        found, _ = fabric.localize(EFFORT)
        assert nobody(found), found.summary
        rounds += len({result.probe.turn for result in found.results})
