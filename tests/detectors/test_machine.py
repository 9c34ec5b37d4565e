"""What a machine's /proc and /sys say, on the formats that the kernel documents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from detectors.machine import Machine, judge_machine, read_machine

MEMINFO = "MemTotal:       1056000000 kB\nMemFree:          900000 kB\nMemAvailable:   528000000 kB\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "proc/meminfo", MEMINFO)
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    write(port / "state", "4: ACTIVE")
    for name in ("symbol_error", "link_downed", "port_rcv_errors"):
        write(port / "counters" / name, "0")
    write(tmp_path / "sys/class/net/eth0/operstate", "up")
    write(tmp_path / "sys/class/net/eth0/carrier_down_count", "1")
    write(tmp_path / "sys/class/net/veth12/operstate", "down")
    write(tmp_path / "sys/devices/system/edac/mc/mc0/ue_count", "0")
    write(tmp_path / "sys/devices/system/edac/mc/mc0/ce_count", "7")
    write(tmp_path / "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count", "3")
    return tmp_path


def test_everything_that_is_there_is_read_and_nothing_else(root: Path) -> None:
    found = read_machine(1.0, root, ("/",))
    assert found.memory_available == 0.5
    assert found.links == {"mlx5_0/1": True, "eth0": True}
    assert found.counters["mlx5_0/1", "link_downed"] == 0 and found.counters["memory controller mc0", "ce_count"] == 7
    assert found.counters["cpu0", "package_throttle_count"] == 3
    assert 0 <= found.free["/"] <= 1


def test_a_machine_that_says_nothing_is_no_error(tmp_path: Path) -> None:
    assert read_machine(1.0, tmp_path, ()) == Machine(1.0)


def test_a_link_that_goes_down_and_comes_back_is_told_once_each(root: Path) -> None:
    before = read_machine(0.0, root, ())
    write(root / "sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    write(root / "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "1")
    down = read_machine(5.0, root, ())
    assert judge_machine(before, down) == ("link mlx5_0/1 went down", "mlx5_0/1: link_downed rose by 1 in 5 s, to 1")
    assert judge_machine(down, replace(down, at=10.0)) == ()
    assert judge_machine(down, replace(before, at=10.0))[0] == "link mlx5_0/1 is up again"


def test_counters_are_judged_by_what_was_added_and_a_reset_is_no_rise(root: Path) -> None:
    before = read_machine(0.0, root, ())
    few = replace(before, at=10.0, counters={**before.counters, ("mlx5_0/1", "symbol_error"): 10})
    many = replace(few, counters={**few.counters, ("mlx5_0/1", "symbol_error"): 11})
    assert judge_machine(before, few) == ()
    assert judge_machine(before, many) == ("mlx5_0/1: symbol_error rose by 11 in 10 s, to 11",)
    after_reset = replace(many, at=20.0, counters={**many.counters, ("mlx5_0/1", "symbol_error"): 0})
    assert judge_machine(many, after_reset) == ()
    uncorrectable = replace(before, at=10.0, counters={**before.counters, ("memory controller mc0", "ue_count"): 1})
    assert judge_machine(before, uncorrectable) == ("memory controller mc0: ue_count rose by 1 in 10 s, to 1",)


def test_memory_and_file_systems_are_told_when_they_run_out_not_while_they_are_out() -> None:
    full = Machine(1.0, memory_available=0.01, free={"/dev/shm": 0.0})
    fine = Machine(0.0, memory_available=0.4, free={"/dev/shm": 0.5})
    assert judge_machine(fine, full) == (
        "memory: 1.0% is available (limit 3%)",
        "file system /dev/shm: 0.0% is free (limit 2%)",
    )
    assert judge_machine(full, full) == ()
