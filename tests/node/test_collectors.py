"""Collectors that hang, fail and speak, beside one another."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from detectors.machine import Machine
from node.collectors import Collector, Collectors, machine_collector
from tests.node.peer import wait_for


def test_a_collector_that_hangs_silences_no_other_and_is_told_once() -> None:
    hold = threading.Event()
    count = iter(range(10_000))

    def hang() -> Sequence[str]:
        hold.wait(60)
        return ()

    def fail() -> Sequence[str]:
        raise OSError("no such device")

    collectors = Collectors(
        [
            Collector("nvml", hang, 0.01, limit_seconds=0.05),
            Collector("links", lambda: [f"line {next(count)}"], 0.01),
            Collector("disks", fail, 0.01),
        ]
    )
    found: list[tuple[str, str]] = []
    try:
        wait_for(lambda: found.extend(collectors.look()) or sum(name == "links" for name, _ in found) > 20, 20)
        wait_for(lambda: found.extend(collectors.look()) or any(name == "nvml" for name, _ in found), 20)
        assert [text for name, text in found if name == "nvml"] == [
            "the collector has not answered for 0 s: what it watches is not known"
        ]
        assert [text for name, text in found if name == "disks"] == ["the collector failed: OSError: no such device"]
        hold.set()
        wait_for(lambda: found.extend(collectors.look()) or ("nvml", "the collector answers again") in found, 20)
    finally:
        hold.set()
        collectors.close()


def test_the_machine_is_compared_with_the_look_before() -> None:
    readings = iter([Machine(0.0, links={"eth0": True}), Machine(5.0, links={"eth0": False})])
    collector = machine_collector(lambda: next(readings))
    assert list(collector.collect()) == []
    assert list(collector.collect()) == ["link eth0 went down"]
