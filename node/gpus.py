"""GPU state, as the driver's management library (NVML) tells it: counters under DCGM's names for them, Xid events, temperatures.

Source: NVML API reference (nvml.h). DCGM reads the same values by the same library, so that one judgement serves both. Calls into
the driver may hang when a GPU is in trouble: they belong into a collector's own thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pynvml

from detectors.metrics import Sample, Scrape, judge_scrapes, xid_line
from node.collectors import Collector

__all__ = ["Gpus", "gpu_collector", "has_driver"]

NAME = "nvml"
LIBRARY = "libnvidia-ml.so.1"
LOOK_SECONDS = 5.0
Handle = Any


def violation(policy: int) -> Callable[[Handle], float]:
    return lambda handle: float(pynvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime)


def uncorrectable(counter: int) -> Callable[[Handle], float]:
    kind = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return lambda handle: float(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))


def remapped(at: int) -> Callable[[Handle], float]:
    """Of (correctable, uncorrectable, pending, failed)."""
    return lambda handle: float(pynvml.nvmlDeviceGetRemappedRows(handle)[at])


def nvlink_errors(counter: int) -> Callable[[Handle], float]:
    """Over all links of the GPU. Raises NVMLError where it has none that count."""

    def read(handle: Handle) -> float:
        first = pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, 0, counter)
        total = float(first)
        with contextlib.suppress(pynvml.NVMLError):
            for link in range(1, pynvml.NVML_NVLINK_MAX_LINKS):
                total += pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter)
        return total

    return read


COUNTERS: Mapping[str, Callable[[Handle], float]] = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": uncorrectable(pynvml.NVML_VOLATILE_ECC),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": uncorrectable(pynvml.NVML_AGGREGATE_ECC),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": remapped(1),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": remapped(2),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": remapped(3),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": lambda handle: float(pynvml.nvmlDeviceGetPcieReplayCounter(handle)),
    "DCGM_FI_DEV_THERMAL_VIOLATION": violation(pynvml.NVML_PERF_POLICY_THERMAL),
    "DCGM_FI_DEV_POWER_VIOLATION": violation(pynvml.NVML_PERF_POLICY_POWER),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": nvlink_errors(pynvml.NVML_NVLINK_ERROR_DL_REPLAY),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": nvlink_errors(pynvml.NVML_NVLINK_ERROR_DL_RECOVERY),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": nvlink_errors(pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": nvlink_errors(pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA),
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One that was there when the agent started. `serial`: None where the board tells none."""

    handle: Handle
    index: int
    uuid: str
    pci: str
    serial: str | None

    @property
    def place(self) -> tuple[tuple[str, str], ...]:
        return (("gpu", str(self.index)), ("UUID", self.uuid), ("pci_bus_id", self.pci))


class Gpus:
    """The GPUs of this node. The driver is asked first by the first look, which may hang as any other."""

    def __init__(self) -> None:
        self._gpus: list[Gpu] = []
        self._events: Any = None
        self._lost: set[str] = set()
        self._before: Scrape | None = None
        self.inventory: list[dict[str, Any]] = []

    def _open(self) -> None:
        pynvml.nvmlInit()
        self._gpus = [found_at(index) for index in range(pynvml.nvmlDeviceGetCount())]
        self._events = pynvml.nvmlEventSetCreate()
        for gpu in self._gpus:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlDeviceRegisterEvents(gpu.handle, pynvml.nvmlEventTypeXidCriticalError, self._events)

    def look(self) -> list[str]:
        """What is new since the last look, a line each; `inventory` is then what a lease tells of the GPUs.

        Raises pynvml.NVMLError where there is no driver to ask.
        """
        if self._events is None:
            self._open()
        lines = [*self._xids()]
        samples: list[Sample] = []
        inventory = []
        for gpu in self._gpus:
            try:
                celsius = pynvml.nvmlDeviceGetTemperature(gpu.handle, pynvml.NVML_TEMPERATURE_GPU)
            except pynvml.NVMLError_GpuIsLost as problem:
                if gpu.uuid not in self._lost:
                    lines.append(f"GPU {gpu.pci}: {problem}")
                self._lost.add(gpu.uuid)
                continue
            except pynvml.NVMLError:
                celsius = None
            identity = {"uuid": gpu.uuid, "serial": gpu.serial, "pci": gpu.pci, "index": gpu.index}
            inventory.append({**identity, "celsius": celsius})
            samples += counters_of(gpu)
        now = Scrape.of(time.monotonic(), samples)
        if self._before is not None:
            lines += judge_scrapes(self._before, now)
        self._before, self.inventory = now, inventory
        return lines

    def _xids(self) -> Iterator[str]:
        by_bus = {gpu.pci: gpu for gpu in self._gpus}
        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError:
                # Nothing is waiting.
                return
            pci = text_of(pynvml.nvmlDeviceGetPciInfo_v3(event.device).busId)
            gpu = by_bus.get(pci)
            place = gpu.place if gpu is not None else (("pci_bus_id", pci),)
            yield xid_line(Sample("NVML", place, float(event.eventData)))


def found_at(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    serial = None
    with contextlib.suppress(pynvml.NVMLError):
        serial = text_of(pynvml.nvmlDeviceGetSerial(handle))
    uuid = text_of(pynvml.nvmlDeviceGetUUID(handle))
    return Gpu(handle, index, uuid, text_of(pynvml.nvmlDeviceGetPciInfo_v3(handle).busId), serial)


def counters_of(gpu: Gpu) -> Iterator[Sample]:
    """What this kind of GPU counts; the rest is not supported by it."""
    for name, read in COUNTERS.items():
        with contextlib.suppress(pynvml.NVMLError):
            yield Sample(name, gpu.place, read(gpu.handle))


def text_of(value: str | bytes) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def has_driver() -> bool:
    """Whether the library is there that the driver brings; nothing is asked of it yet."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def gpu_collector(gpus: Gpus) -> Collector:
    return Collector(NAME, gpus.look, LOOK_SECONDS)
