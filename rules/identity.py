"""Who a record is about: the job, node, GPU and rank that its labels or attributes name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["JOB_KEYS", "RANK_KEYS", "Subject", "job_of", "subject_of"]

# The first of these that a record carries names its job; the order is a setting of the service.
JOB_KEYS = ("pitstop_job", "job.id", "job_id", "slurm_job_id", "k8s.job.name")
NODE_KEYS = ("node", "host.name", "hostname", "Hostname", "k8s.node.name", "host", "nodename", "instance")
GPU_KEYS = ("gpu.serial", "gpu_serial", "gpu.uuid", "gpu_uuid", "UUID", "gpu")
RANK_KEYS = ("rank", "pitstop_rank", "global_rank")


@dataclass(frozen=True, slots=True)
class Subject:
    """Names as they stood in the record; resolving them to canonical ids is another step."""

    job: str | None = None
    node: str | None = None
    gpu: str | None = None
    rank: int | None = None


def first(labels: Mapping[str, str], keys: Sequence[str]) -> str | None:
    return next((labels[key] for key in keys if labels.get(key)), None)


def variants(keys: Sequence[str]) -> tuple[str, ...]:
    """Label names cannot hold dots, so senders put underscores; the dotted form counts first."""
    return tuple(dict.fromkeys(name for key in keys for name in (key, key.replace(".", "_"))))


def job_of(labels: Mapping[str, str], keys: Sequence[str] = JOB_KEYS, *, scrape_label_counts: bool = False) -> str | None:
    """The job id of a record. `job` alone is Prometheus' scrape job: it counts only for Loki streams, and only last."""
    named = first(labels, variants(keys))
    return named or (labels.get("job") or None if scrape_label_counts else None)


def subject_of(labels: Mapping[str, str], keys: Sequence[str] = JOB_KEYS, *, scrape_label_counts: bool = False) -> Subject:
    """All that the labels say about whom the record is about."""
    node = first(labels, variants(NODE_KEYS))
    if node is not None and node == labels.get("instance") and node.count(":") == 1:
        # An instance is host:port of what was scraped.
        node = node.partition(":")[0]
    rank = first(labels, RANK_KEYS)
    return Subject(
        job=job_of(labels, keys, scrape_label_counts=scrape_label_counts),
        node=node,
        gpu=first(labels, variants(GPU_KEYS)),
        rank=int(rank) if rank is not None and rank.isdecimal() and len(rank) < 10 else None,
    )
