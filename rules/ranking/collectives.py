"""What collective timeouts tell when the ranks' reports are laid side by side.

A timeout is a symptom. If ranks report different collectives of one process group, the code diverged; if they agree, the
rank that is silent, or that has enqueued least, is the suspect; and if the time limit began to run while a checkpoint was
being saved or one rank still prepared data, that is the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rules.diagnosis import FaultDomain
from rules.pack import Mark
from rules.ranking.inference import Inference
from rules.ranking.observation import Observation, position
from rules.ranking.timeline import Timeline

__all__ = ["TimeoutReport", "diverged", "infer_collectives", "reports_of", "silent_rank"]

TIMEOUT = "nccl_timeout_unattributed"
# Reasons that a waiting rank reports while another one is still busy.
WAITING = frozenset((TIMEOUT, "rendezvous_store_unreachable", "coordination_heartbeat_timeout"))
# Groups without a name are compared only where their counters are this close: further apart they are different groups.
NEAR_SEQUENCES = 64
# How far (seconds) the start of the time limit may lie from the line that explains it.
BEFORE_SECONDS, AFTER_SECONDS = 600.0, 30.0


@dataclass(frozen=True, slots=True)
class TimeoutReport:
    """One rank's report of a collective that did not end: what it waited for, and since when (seconds since the epoch)."""

    rank: int | None
    group: str | None
    sequence: int
    operation: str | None
    size: int | None
    enqueued: int | None
    started: float | None
    source: Observation


def reports_of(observations: Sequence[Observation]) -> tuple[TimeoutReport, ...]:
    """The timeout reports among `observations`, one a rank and group: the one that says most."""
    best: dict[tuple[int | None, str | None], TimeoutReport] = {}
    for item in observations:
        sequence = item.number("sequence")
        if sequence is None or item.reason != TIMEOUT:
            continue
        rank = next((value for name in ("reporter", "rank") if (value := item.number(name)) is not None), item.rank)
        elapsed = item.number("elapsed_ms")
        if elapsed is None:
            elapsed = item.number("timeout_ms")
        started = item.line.time - elapsed / 1000 if item.line.time is not None and elapsed is not None else None
        report = TimeoutReport(
            rank,
            item.capture("group"),
            sequence,
            item.capture("operation"),
            item.number("size"),
            item.number("enqueued"),
            started,
            item,
        )
        known = best.get((rank, report.group))
        if known is None or (known.operation is None and report.operation is not None):
            best[rank, report.group] = report
    return tuple(best.values())


def comparable(one: TimeoutReport, other: TimeoutReport) -> bool:
    """Whether two reports are of two ranks and, as far as they tell, of one process group."""
    if one.rank is None or one.rank == other.rank or other.rank is None:
        return False
    if one.group is not None and other.group is not None:
        return one.group == other.group
    return abs(one.sequence - other.sequence) <= NEAR_SEQUENCES


def differences(one: TimeoutReport, other: TimeoutReport) -> list[str]:
    found = []
    if one.operation and other.operation and one.operation != other.operation:
        found.append(f"operation {one.operation} against {other.operation}")
    if one.sequence != other.sequence:
        found.append(f"sequence number {one.sequence} against {other.sequence}")
    elif one.size is not None and other.size is not None and one.size != other.size:
        found.append(f"{one.size} elements against {other.size}")
    return found


def diverged(reports: Sequence[TimeoutReport]) -> tuple[TimeoutReport, TimeoutReport, str] | None:
    """Two reports of one group that wait for different collectives, and in what they differ."""
    for index, one in enumerate(reports):
        for other in reports[index + 1 :]:
            if comparable(one, other) and (found := differences(one, other)):
                return one, other, f"ranks {one.rank} and {other.rank} wait for different collectives: {', '.join(found)}"
    return None


def silent_rank(reports: Sequence[TimeoutReport], world: int | None = None) -> tuple[int, str] | None:
    """The rank that the agreeing reports point at, and why: the one that has enqueued least, else the only one that is silent."""
    enqueued = {report.rank: report.enqueued for report in reports if report.rank is not None and report.enqueued is not None}
    if len(enqueued) > 1 and len({report.group for report in reports}) == 1:
        least = min(enqueued.values())
        behind = [rank for rank, value in enqueued.items() if value == least]
        if len(behind) == 1:
            return behind[0], f"rank {behind[0]} has enqueued only {least} collectives, the others {max(enqueued.values())}"
    reporting = {report.rank for report in reports if report.rank is not None}
    if len(reporting) < 2:
        return None
    missing = sorted(set(range(world if world is not None else max(reporting) + 1)) - reporting)
    if len(missing) == 1:
        return missing[0], f"rank {missing[0]} is the only one that reports nothing"
    return None


def explained_by_phase(waits: Sequence[Observation], reports: Sequence[TimeoutReport], timeline: Timeline) -> Inference | None:
    """A save or a preparation that one rank was in when the others began to wait."""
    first = min(waits, key=lambda item: item.order)
    started = min((report.started for report in reports if report.started is not None), default=None)
    busy = timeline.standing(first, Mark.SAVE, Mark.PREPARATION)
    if busy is None:
        return None
    began = busy.last.time
    if (
        began is not None
        and started is not None
        and not -BEFORE_SECONDS <= began - started <= AFTER_SECONDS
        and busy.marks(Mark.SAVE)
    ):
        return None
    explains = WAITING | {"remote_peer_lost", "process_exit_unattributed"}
    if busy.marks(Mark.SAVE):
        why = f"the ranks began to wait while a checkpoint was being saved ({position(busy.last)})"
        return Inference("checkpoint_save_stall", 70, (busy,), why, explains=explains)
    why = f"the ranks waited in set-up while one of them still prepared data ({position(busy.last)})"
    return Inference("rank0_preprocessing_timeout", 70, (busy,), why, explains=explains)


def says_timeout(item: Observation) -> bool:
    """Whether a rank ran out of patience, rather than that a connection broke."""
    text = item.line.text.lower()
    return "timeout" in text or "timed out" in text


def infer_collectives(observations: Sequence[Observation], timeline: Timeline, world: int | None = None) -> list[Inference]:
    """What the timeouts among `observations` lead to; empty where there are none, or where they leave the cause open."""
    waits = [item for item in observations if item.reason in WAITING and (item.reason == TIMEOUT or says_timeout(item))]
    if not waits:
        return []
    reports = reports_of(observations)
    if parted := diverged(reports):
        lines = tuple(report.source for report in reports)
        return [Inference("collective_mismatch", 75, lines, parted[2], explains=WAITING | {"remote_peer_lost"})]
    inferences = []
    if phase := explained_by_phase(waits, reports, timeline):
        inferences.append(phase)
    if suspect := silent_rank(reports, world):
        sources = tuple(report.source for report in reports)
        domain = FaultDomain(rank=str(suspect[0]))
        inferences.append(Inference(TIMEOUT, 45, sources, suspect[1], domain, established=False))
    return inferences
