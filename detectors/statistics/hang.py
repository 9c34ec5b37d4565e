"""Hangs: a rank stays in a section for longer than that section ever explains.

The rule is that of Unicron (arXiv 2401.00134, 4.1): elapsed time over three times the mean, here per section, so that an
evaluation or a checkpoint is measured against its own kind. The first step, and a section seen for the first time, have no mean:
they get a long fixed limit. In a synchronous job every rank waits for the one that hangs; which one that is, the operating system
knows better than the step counter: a stopped process, one that alone burns the processor, one that waits for a disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from detectors.statistics.judgement import Finding, Judgement

__all__ = ["HangLimits", "ProcessState", "RankPulse", "judge_hang"]


class ProcessState(StrEnum):
    """What the operating system says of a rank's process."""

    BUSY = "busy"
    IDLE = "idle"
    STOPPED = "stopped"
    DISK = "waiting for a disk"


@dataclass(frozen=True, slots=True)
class RankPulse:
    """One rank at one moment. `elapsed_seconds`: how long it has been in `section`.

    `mean_seconds` and `longest_seconds` are of finished sections of that kind since this process started, without the first step;
    None while there are too few of them (`HangLimits.warm_up`). `outside`: between two steps.
    """

    rank: int
    step: int
    section: str
    elapsed_seconds: float
    mean_seconds: float | None
    longest_seconds: float = 0.0
    state: ProcessState = ProcessState.IDLE
    outside: bool = False


@dataclass(frozen=True, slots=True)
class HangLimits:
    """`factor` x mean + `floor_seconds`, at least `longest_factor` x the longest one seen; `unknown_seconds` without a mean.

    A judgement that no process state supports (every rank idle, or every rank busy as NCCL's waiting is) becomes firm only after
    `doubtful_factor` x mean + `doubtful_seconds`: it may be a checkpoint that nobody marked.
    """

    factor: float = 3.0
    floor_seconds: float = 0.3
    longest_factor: float = 1.5
    unknown_seconds: float = 1800.0
    doubtful_factor: float = 10.0
    doubtful_seconds: float = 30.0
    warm_up: int = 5


def limit_of(pulse: RankPulse, limits: HangLimits) -> float:
    if pulse.mean_seconds is None:
        return limits.unknown_seconds
    return max(limits.factor * pulse.mean_seconds + limits.floor_seconds, limits.longest_factor * pulse.longest_seconds)


def judge_hang(pulses: Sequence[RankPulse], limits: HangLimits = HangLimits()) -> Judgement | None:
    """Whether the job hangs, and which rank holds it up.

    None while a rank that the late ones may be waiting for is within its own limit: it works. One that is more than a step ahead
    of a late rank does not wait for it, nor it for that one: ranks that are independent are judged each by itself.
    """
    late = [pulse for pulse in pulses if pulse.elapsed_seconds > limit_of(pulse, limits)]
    working = [pulse for pulse in pulses if pulse not in late]
    overdue = [pulse for pulse in late if not any(other.step <= pulse.step + 1 for other in working)]
    if all(pulse.outside for pulse in overdue):
        # Nobody waits inside a step: an evaluation that nobody marked.
        return None
    return named(overdue, len(pulses), limits) or doubtful(overdue, len(pulses), limits)


def named(overdue: Sequence[RankPulse], ranks: int, limits: HangLimits) -> Judgement | None:
    """The judgement where the states of the processes single one rank out."""
    for state in (ProcessState.STOPPED, ProcessState.DISK, ProcessState.BUSY):
        found = [pulse for pulse in overdue if pulse.state is state]
        if len(found) == 1 and (ranks > 1 or state is not ProcessState.BUSY):
            return judgement(found[0], limits, f"its process is {state.value}" + others(ranks - 1))
    return None


def doubtful(overdue: Sequence[RankPulse], ranks: int, limits: HangLimits) -> Judgement:
    """The judgement where nothing but time speaks: the rank that is behind, if there is one."""
    worst = max(overdue, key=lambda pulse: pulse.elapsed_seconds)
    least = min(pulse.step for pulse in overdue)
    behind = [pulse for pulse in overdue if pulse.step == least]
    lagging = len(behind) == 1 and ranks > 1
    mean = worst.mean_seconds
    patience = limits.doubtful_factor * mean + limits.doubtful_seconds if mean is not None else limits.unknown_seconds
    firm = worst.elapsed_seconds > patience
    if lagging:
        found = judgement(behind[0], limits, "it is behind every other rank")
    else:
        found = judgement(worst, limits, "no one rank stands out")
    return Judgement(
        found.finding, found.why, worst.elapsed_seconds, found.limit, behind[0].rank if lagging else None, found.step, firm
    )


def judgement(pulse: RankPulse, limits: HangLimits, because: str) -> Judgement:
    limit = limit_of(pulse, limits)
    mean = "unknown" if pulse.mean_seconds is None else f"{pulse.mean_seconds:.3g} s"
    why = (
        f"rank {pulse.rank} is in {pulse.section} of step {pulse.step} for {pulse.elapsed_seconds:.2f} s"
        f" (mean {mean}, limit {limit:.2f} s); {because}"
    )
    return Judgement(Finding.HANG, why, pulse.elapsed_seconds, limit, pulse.rank, pulse.step)


def others(count: int) -> str:
    return f", {count} other{'s' if count > 1 else ''} wait{'' if count > 1 else 's'}" if count else ""
