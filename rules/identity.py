"""Who a record is about: the job, node, GPU and rank that its labels or attributes name, and which machine a name stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

__all__ = [
    "JOB_KEYS",
    "RANK_KEYS",
    "Directory",
    "Gpu",
    "Resolved",
    "Subject",
    "addressable",
    "host_of",
    "job_of",
    "storable",
    "subject_of",
]

# The first of these that a record carries names its job; the order is a setting of the service.
JOB_KEYS = ("pitstop_job", "job.id", "job_id", "slurm_job_id", "k8s.job.name")
NODE_KEYS = ("node", "host.name", "hostname", "Hostname", "k8s.node.name", "host", "nodename", "instance")
GPU_KEYS = ("gpu.serial", "gpu_serial", "gpu.uuid", "gpu_uuid", "UUID", "gpu")
MAX_NAME = 255
RANK_KEYS = ("rank", "pitstop_rank", "global_rank")


@dataclass(frozen=True, slots=True)
class Subject:
    """Names as they stood in the record; resolving them to canonical ids is another step."""

    job: str | None = None
    node: str | None = None
    gpu: str | None = None
    rank: int | None = None


def first(labels: Mapping[str, str], keys: Sequence[str]) -> str | None:
    return next((storable(labels[key], MAX_NAME) for key in keys if labels.get(key)), None)


def addressable(name: str) -> bool:
    """Whether `name` can stand in an address, where clients and servers take the rest for a path, and name a folder."""
    return "/" not in name and name not in ("", ".", "..")


def storable(text: str, limit: int) -> str:
    """`text` as every database takes it: without NUL and lone surrogates, at most `limit` characters."""
    return text[:limit].encode("utf-8", "replace").decode().replace("\0", "\ufffd")


@cache
def variants(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Label names cannot hold dots, so senders put underscores; the dotted form counts first."""
    return tuple(dict.fromkeys(name for key in keys for name in (key, key.replace(".", "_"))))


def job_of(labels: Mapping[str, str], keys: Sequence[str] = JOB_KEYS, *, scrape_label_counts: bool = False) -> str | None:
    """The job id of a record. `job` alone is Prometheus' scrape job: it counts only for Loki streams, and only last."""
    named = first(labels, variants(tuple(keys)))
    return named or (labels.get("job") or None if scrape_label_counts else None)


def subject_of(labels: Mapping[str, str], keys: Sequence[str] = JOB_KEYS, *, scrape_label_counts: bool = False) -> Subject:
    """All that the labels say about whom the record is about."""
    node = first(labels, variants(NODE_KEYS))
    if node is not None and node == labels.get("instance"):
        # An instance is host:port of what was scraped.
        node = host_of(node)
    rank = first(labels, RANK_KEYS)
    return Subject(
        job=job_of(labels, keys, scrape_label_counts=scrape_label_counts),
        node=node,
        gpu=first(labels, variants(GPU_KEYS)),
        rank=int(rank) if rank is not None and rank.isdecimal() and len(rank) < 10 else None,
    )


def host_of(name: str) -> str:
    """The host of `host`, `host:port`, `[address]:port` or an address; a final dot of a full name does not count."""
    if name.startswith("["):
        return name[1:].partition("]")[0]
    if name.count(":") == 1:
        name = name.partition(":")[0]
    return name.rstrip(".")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU is its serial or UUID; PCI id and index hold for one boot of its node."""

    node: str
    uuid: str | None = None
    serial: str | None = None
    pci: str | None = None
    index: int | None = None

    @property
    def id(self) -> str:
        """What history follows: the serial where it is known."""
        return self.serial or self.uuid or f"{self.node}/{self.pci or self.index}"


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a name stands for. `id` is None where it stays text: such a name is never the target of an action."""

    id: str | None
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Directory:
    """All that is known of names. `nodes`: canonical ids; `aliases`: another name -> the nodes that claim it."""

    nodes: frozenset[str] = frozenset()
    aliases: Mapping[str, frozenset[str]] = field(default_factory=dict)
    gpus: Sequence[Gpu] = ()

    def node(self, name: str) -> Resolved:
        """The node that `name` stands for: an id, then a name it is known by; case and a port do not count."""
        host = host_of(name)
        if host in self.nodes:
            return Resolved(host, name, "the node's own id")
        claimed = self.aliases.get(host) or self.aliases.get(host.lower()) or frozenset()
        if not claimed:
            claimed = frozenset(node for node in self.nodes if node.lower() == host.lower())
        if len(claimed) == 1:
            return Resolved(next(iter(claimed)), name, f"{host} is a name of the node")
        if claimed:
            return Resolved(None, name, f"{host} is claimed by {', '.join(sorted(claimed))}")
        return Resolved(None, name, f"no agent reported a node of the name {host}")

    def gpu(self, name: str, node: str | None = None) -> Resolved:
        """The GPU that `name` stands for: serial or UUID anywhere, PCI id or index on its `node` (a canonical id) only."""
        wanted = name.lower().removeprefix("gpu-")
        for gpu in self.gpus:
            if wanted in (normal(gpu.serial), normal(gpu.uuid)):
                return Resolved(gpu.id, name, "by its serial or UUID")
        here = [gpu for gpu in self.gpus if node is not None and gpu.node == node]
        for gpu in here:
            if gpu.pci is not None and bus_of(gpu.pci) == bus_of(name):
                return Resolved(gpu.id, name, f"by its PCI id on {node}")
        for gpu in here:
            if gpu.index is not None and name.isdecimal() and int(name) == gpu.index:
                return Resolved(gpu.id, name, f"by its index on {node}")
        return Resolved(None, name, "no agent reported such a GPU" + (f" on {node}" if node else ""))


def normal(name: str | None) -> str | None:
    return None if name is None else name.lower().removeprefix("gpu-")


def bus_of(pci: str) -> str:
    """`0000:b3:00.0`, `PCI:0000:b3:00` and `00000000:B3:00.0` are one address: domain, bus, device."""
    parts = pci.lower().removeprefix("pci:").partition(".")[0].split(":")
    return ":".join(part.lstrip("0") or "0" for part in (["0", *parts] if len(parts) == 2 else parts))
