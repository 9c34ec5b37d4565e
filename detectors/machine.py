"""The state of a machine, as its kernel shows it in /proc and /sys: memory, file systems, links, memory errors, throttling.

Reading (`read_machine`) is apart from judging (`judge_machine`), which compares two readings: counters count since boot, and
only what was added between two looks says anything. Sources: the Linux kernel's Documentation/ABI/stable/sysfs-class-infiniband,
testing/sysfs-class-net, testing/sysfs-devices-edac, and Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Limits", "Machine", "judge_machine", "read_machine"]

# Of an InfiniBand port: InfiniBand Architecture Specification, PortCounters.
PORT_COUNTERS = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors")
# Interfaces that come and go with containers say nothing about the machine.
VIRTUAL = ("lo", "veth", "docker", "br-", "virbr", "cni", "flannel", "cali", "tun", "tap", "bonding_masters")


@dataclass(frozen=True, slots=True)
class Machine:
    """One reading. Shares are of the whole, 0 to 1; `links`: name -> whether it is up; `counters`: (what, counter) -> value."""

    at: float
    memory_available: float | None = None
    free: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, bool] = field(default_factory=dict)
    counters: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """Below these shares a machine is about to fail. `per_second`: how fast a counter of errors may rise before it is told."""

    memory_available: float = 0.03
    free: float = 0.02
    per_second: Mapping[str, float] = field(
        default_factory=lambda: {"symbol_error": 1.0, "port_rcv_errors": 1.0, "ce_count": 1.0, "package_throttle_count": 1.0}
    )


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_count(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text.isdecimal() else None


def read_machine(at: float, root: Path = Path("/"), mounts: Sequence[str] = ("/", "/dev/shm", "/tmp")) -> Machine:
    """What can be read; what is not there on this machine is left out. `root`: where /proc and /sys are."""
    counters: dict[tuple[str, str], int] = {}
    links = read_links(root, counters)
    for controller in sorted((root / "sys/devices/system/edac/mc").glob("mc[0-9]*")):
        for name in ("ue_count", "ce_count"):
            keep(counters, f"memory controller {controller.name}", name, controller / name)
    for package in sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/package_throttle_count")):
        keep(counters, package.parts[-3], "package_throttle_count", package)
    free = {}
    for mount in mounts:
        with contextlib.suppress(OSError):
            found = os.statvfs(root / mount.lstrip("/"))
            if found.f_blocks:
                free[mount] = found.f_bavail / found.f_blocks
    return Machine(at, memory_share(read_text(root / "proc/meminfo")), free, links, counters)


def read_links(root: Path, counters: dict[tuple[str, str], int]) -> dict[str, bool]:
    links: dict[str, bool] = {}
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/[0-9]*")):
        name = f"{port.parts[-3]}/{port.name}"
        state = read_text(port / "state")
        if state:
            # "4: ACTIVE"; any other number is a port that carries nothing.
            links[name] = state.startswith("4")
        for counter in PORT_COUNTERS:
            keep(counters, name, counter, port / "counters" / counter)
    for interface in sorted((root / "sys/class/net").glob("*")):
        if interface.name.startswith(VIRTUAL):
            continue
        state = read_text(interface / "operstate")
        if state in ("up", "down"):
            links[interface.name] = state == "up"
        keep(counters, interface.name, "carrier_down_count", interface / "carrier_down_count")
    return links


def keep(counters: dict[tuple[str, str], int], what: str, name: str, path: Path) -> None:
    value = read_count(path)
    if value is not None:
        counters[what, name] = value


def memory_share(meminfo: str) -> float | None:
    """MemAvailable of MemTotal; None where the kernel does not say."""
    values = {line.split(":")[0]: line.split()[1] for line in meminfo.splitlines() if len(line.split()) >= 2}
    try:
        return int(values["MemAvailable"]) / int(values["MemTotal"])
    except (KeyError, ValueError, ZeroDivisionError):
        return None


def judge_machine(before: Machine, now: Machine, limits: Limits = Limits()) -> tuple[str, ...]:
    """What is new and bad since `before`, one sentence each. A counter that went back was reset: it counts from nothing."""
    found = []
    low = limits.memory_available
    if is_below(now.memory_available, low) and not is_below(before.memory_available, low):
        found.append(f"memory: {now.memory_available:.1%} is available (limit {low:.0%})")
    for mount, share in now.free.items():
        if is_below(share, limits.free) and not is_below(before.free.get(mount), limits.free):
            found.append(f"file system {mount}: {share:.1%} is free (limit {limits.free:.0%})")
    for link, is_up in now.links.items():
        if before.links.get(link) is True and not is_up:
            found.append(f"link {link} went down")
        elif before.links.get(link) is False and is_up:
            found.append(f"link {link} is up again")
    seconds = max(now.at - before.at, 1e-3)
    for key, value in now.counters.items():
        if key not in before.counters:
            continue
        added = value - before.counters[key] if value >= before.counters[key] else value
        what, name = key
        allowed = limits.per_second.get(name, 0.0) * seconds
        if added > allowed:
            found.append(f"{what}: {name} rose by {added} in {seconds:.0f} s, to {value}")
    return tuple(found)


def is_below(share: float | None, limit: float) -> bool:
    return share is not None and share < limit
