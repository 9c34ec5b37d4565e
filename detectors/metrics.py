"""Metrics in Prometheus' text format, judged: what rose, what changed, what was reset. Pure.

Known are the fields of NVIDIA's dcgm-exporter (etc/dcp-metrics-included.csv of its repository; DCGM's API reference) and of the
InfiniBand collector of node_exporter. A counter says something by what was added between two scrapes; DCGM's Xid is a state that
holds the last one for ever, and is an event only when it changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["COUNTERS", "XID", "Sample", "Scrape", "judge_scrapes", "parse_exposition", "xid_line"]

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}

XID = "DCGM_FI_DEV_XID_ERRORS"
# How much each may rise in a second without a word: replays and symbol errors happen on healthy links.
COUNTERS: Mapping[str, float] = MappingProxyType(
    {
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0.0,
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": 0.0,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0.0,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0.0,
        "DCGM_FI_DEV_ROW_REMAP_PENDING": 0.0,
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 1.0,
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 1.0,
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 1.0,
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 0.0,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 1.0,
        # Nanoseconds spent throttled: a tenth of the time.
        "DCGM_FI_DEV_THERMAL_VIOLATION": 1e8,
        "DCGM_FI_DEV_POWER_VIOLATION": 1e8,
        "node_infiniband_link_downed_total": 0.0,
        "node_infiniband_link_error_recovery_total": 0.0,
        "node_infiniband_symbol_error_total": 1.0,
        "node_infiniband_port_errors_received_total": 1.0,
    }
)
# The labels that say where; the others (driver versions, pods) come and go.
PLACES = ("gpu", "UUID", "pci_bus_id", "device", "port", "nvlink")


@dataclass(frozen=True, slots=True)
class Sample:
    """`place`: the labels that say which device, in a fixed order."""

    name: str
    place: tuple[tuple[str, str], ...]
    value: float

    @property
    def where(self) -> str:
        return ", ".join(f"{label} {value}" for label, value in self.place) or "this node"


@dataclass(frozen=True, slots=True)
class Scrape:
    """What was read at `at` (seconds, of any clock that does not jump)."""

    at: float
    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], Sample] = field(default_factory=dict)

    @classmethod
    def of(cls, at: float, samples: Iterable[Sample]) -> Scrape:
        return cls(at, {(sample.name, sample.place): sample for sample in samples})


def parse_exposition(text: str) -> list[Sample]:
    """The known samples of a scrape; lines that make no sense, and values that are no number, are left."""
    found = []
    for line in text.splitlines():
        matched = None if line.startswith("#") else SAMPLE.fullmatch(line)
        if matched is None or (matched[1] not in COUNTERS and matched[1] != XID):
            continue
        try:
            value = float(matched[3])
        except ValueError:
            continue
        labels = {name: unescape(told) for name, told in LABEL.findall(matched[2] or "")}
        place = tuple((name, labels[name]) for name in PLACES if labels.get(name))
        if value == value:
            found.append(Sample(matched[1], place, value))
    return found


def unescape(text: str) -> str:
    return re.sub(r'\\[n"\\]', lambda found: ESCAPES[found[0]], text)


def judge_scrapes(before: Scrape, now: Scrape) -> tuple[str, ...]:
    """What is new since `before`, a line each; an Xid in the driver's own words, so that it passes through the same rules."""
    seconds = max(now.at - before.at, 1e-3)
    found = []
    for key, sample in now.samples.items():
        earlier = before.samples.get(key)
        if earlier is None:
            # Nobody knows since when: the first scrape of a device says nothing.
            continue
        if sample.name == XID:
            if sample.value and sample.value != earlier.value:
                found.append(xid_line(sample))
            continue
        # A counter that went back was reset, with its device or its exporter: it counts from nothing.
        added = sample.value - earlier.value if sample.value >= earlier.value else sample.value
        if added > COUNTERS[sample.name] * seconds:
            found.append(f"{sample.where}: {sample.name} rose by {added:g} in {seconds:.0f} s, to {sample.value:g}")
    return tuple(found)


def xid_line(sample: Sample) -> str:
    """An Xid that `sample` told of, as the driver writes it to the kernel log."""
    places = dict(sample.place)
    return f"NVRM: Xid (PCI:{places.get('pci_bus_id', 'unknown')}): {sample.value:.0f}, told by {sample.name} of {sample.where}"
