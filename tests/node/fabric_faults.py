"""Faults that strike one node of a fabric, or one link, and what a right verdict on each says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from recovery.localization.probes import Localization, Verdict
from tests.node.fabric import KILL, STOP, Fabric, build_liar

__all__ = ["FAULTS", "nobody", "strike"]

BAD = "n3"


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
    fabric.wait_until_warm(BAD)
    try:
        yield
    finally:
        fabric.workers[BAD].close()
        fabric.start(BAD)
        fabric.wait_until_warm(BAD)


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
        found, seconds = fabric.localize()
    fabric.heal(BAD)
    return is_right(found), seconds, found.summary
