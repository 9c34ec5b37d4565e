"""NCCL RAS status documents: which processes of a communicator are gone, and which ones stand still.

Format: nccl `src/ras/{client,client_support}.cc` (2.28.7 and later, `SET FORMAT json`). Counters of healthy ranks differ while
they move, so standing still takes two samples of one communicator to say.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rules.signal import Line, Trust

__all__ = ["Sample", "compare_samples", "parse_status"]

MAX_REPORTED_RANKS = 16
MAX_COMMUNICATORS = 4_096
HOST = re.compile(r"[\w.:-]{1,255}")


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a communicator: how many collectives it has started, or why it does not answer."""

    rank: int
    host: str
    pid: int
    counts: Mapping[str, int] = field(default_factory=dict)
    unresponsive: bool = False
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One communicator at one time. `order` numbers the samples of one input; `time` is seconds since the epoch."""

    path: str
    communicator: str
    time: float | None
    order: int
    size: int
    members: Mapping[int, Member]


def parse_status(document: Any, path: str, time: float | None, order: int = 0) -> tuple[Sample, ...] | None:
    """The communicators of one status document; None where `document` is something else. What makes no sense is left out."""
    if not isinstance(document, dict) or not isinstance(document.get("communicators"), list) or "nccl_version" not in document:
        return None
    samples = []
    for entry in document["communicators"][:MAX_COMMUNICATORS]:
        try:
            members = {}
            for rank in entry.get("ranks") or ():
                counts = {str(name): int(count) for name, count in (rank.get("collective_counts") or {}).items()}
                members[int(rank["rank"])] = Member(int(rank["rank"]), host_of(rank), int(rank.get("pid", 0)), counts)
            for rank in entry.get("missing_ranks") or ():
                status = rank.get("status") or {}
                members[int(rank["rank"])] = Member(
                    int(rank["rank"]),
                    host_of(rank),
                    int(rank.get("pid", 0)),
                    unresponsive=status.get("unresponsive") is True,
                    dead=status.get("considered_dead") is True,
                )
            samples.append(Sample(path, f"{entry['hash']}", time, order, int(entry["size"]), members))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue
    return tuple(samples)


def host_of(rank: Mapping[str, Any]) -> str:
    host = rank.get("host")
    return host if isinstance(host, str) and HOST.fullmatch(host) else ""


def compare_samples(samples: Sequence[Sample]) -> tuple[Line, ...]:
    """What the samples tell: dead processes at once; unresponsive ones and standing counters only where two samples agree."""
    by_communicator: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_communicator[sample.communicator].append(sample)
    lines: list[Line] = []
    for seen in by_communicator.values():
        seen.sort(key=lambda sample: (sample.time or 0.0, sample.path, sample.order))
        last, before = seen[-1], seen[-2] if len(seen) > 1 else None
        gone = [member for member in last.members.values() if is_gone(member, before)]
        for member in gone[:MAX_REPORTED_RANKS]:
            state = "is considered dead by nccl ras" if member.dead else "does not respond to nccl ras"
            lines.append(line_of(last, member, f"rank {member.rank}{on(member)} {state}"))
        if before is not None and not gone:
            lines.extend(standing_still(before, last))
    return tuple(lines)


def is_gone(member: Member, before: Sample | None) -> bool:
    earlier = before.members.get(member.rank) if before else None
    return member.dead or (member.unresponsive and earlier is not None and (earlier.unresponsive or earlier.dead))


def standing_still(before: Sample, last: Sample) -> list[Line]:
    """The ranks whose counters are behind the others' in both samples while nobody's counters move."""
    both = [rank for rank in last.members if rank in before.members and last.members[rank].counts]
    if len(both) < 2 or any(before.members[rank].counts != last.members[rank].counts for rank in both):
        return []
    lines = []
    for name in sorted({name for rank in both for name in last.members[rank].counts}):
        counts = {rank: last.members[rank].counts.get(name, 0) for rank in both}
        most = max(counts.values())
        for rank in [rank for rank, count in counts.items() if count < most][:MAX_REPORTED_RANKS]:
            member = last.members[rank]
            text = f"rank {rank}{on(member)} stands at {counts[rank]} {name} operations in two samples, others at {most}"
            lines.append(line_of(last, member, text))
    return lines


def on(member: Member) -> str:
    return f" on {member.host}" if member.host else ""


def line_of(sample: Sample, member: Member, text: str) -> Line:
    return Line(
        f"communicator {sample.communicator[:40]}: {text}",
        1,
        sample.path,
        member.rank,
        member.host or None,
        sample.time,
        Trust.NODE,
    )
