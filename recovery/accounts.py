"""What failures cost: the wall-clock time of one job divided, without gap or overlap, into what it was spent on.

Pure. Every second from the first start to the end belongs to exactly one phase, so that an account adds up to the wall clock by
construction; moments that contradict one another (clocks, late reports, an agent that acted before the diagnosis) are brought
into order by clamping each to the one before it. The phases of a failure follow Unicron's C_recovery = C_detection +
C_transition + C_sub-healthy (arXiv 2401.00134, section 4), with diagnosis, decision and recomputed steps told apart. Times are
seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

__all__ = [
    "DAY_SECONDS",
    "DOWN",
    "Generation",
    "JobAccount",
    "JobRecord",
    "Loss",
    "Outcome",
    "Phase",
    "Report",
    "Span",
    "account",
    "days_of",
]

DAY_SECONDS = 86_400.0
# A step that takes longer than this many usual ones is a stop (Unicron, table 2); heartbeats, one a second, show no shorter one.
STALL_STEPS, STALL_SECONDS = 3.0, 3.0


class Phase(StrEnum):
    """What a second of a job was spent on. `STARTING`: the first start up to its first step."""

    STARTING = "starting"
    PRODUCTIVE = "productive"
    DETECTION = "detection"
    DIAGNOSIS = "diagnosis"
    DECISION = "decision"
    TRANSITION = "transition"
    RECOMPUTING = "recomputing"


DOWN = (Phase.DETECTION, Phase.DIAGNOSIS, Phase.DECISION, Phase.TRANSITION)


class Outcome(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Generation:
    """One forming of a job: its size, and the steps that were seen of it (None: it reported none).

    `alive_at`: when it last got anywhere; `step_seconds`: how long a step of it takes; `caught_up_at`: when it was past what
    those before it had done.
    """

    number: int
    gpus: int
    started_at: float
    first_step: int | None = None
    first_step_at: float | None = None
    last_step: int | None = None
    alive_at: float | None = None
    step_seconds: float | None = None
    caught_up_at: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The failure of one generation as it was reported and handled; None: that did not happen, or not yet.

    `exited_at`: when the first of its processes raised or ended.
    """

    reported_at: float
    exited_at: float | None = None
    diagnosed_at: float | None = None
    decided_at: float | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Everything an account is made of. `reports`: by generation. `until`: the job's end, or up to when it is known."""

    job: str
    generations: tuple[Generation, ...]
    reports: Mapping[int, Report]
    until: float
    outcome: Outcome = Outcome.RUNNING


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one phase. `gpus`: what the job held; `missing`: by how much failures have shrunk it."""

    phase: Phase
    start: float
    end: float
    gpus: int
    missing: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Loss:
    """What one interruption cost. `generation`: the one that failed. `ran_seconds`: for how long that one had run (time to
    failure). `restart_seconds`: from the stop to the next first step (time to restart), None where none came.

    `seconds`: of all phases but starting and productive. `recomputed_steps`: None where no steps are reported.
    `missing_gpu_seconds`: what the job ran without until its size was back, part of `lost_gpu_seconds`.
    """

    generation: int
    gpus: int
    stopped_at: float
    ran_seconds: float
    seconds: Mapping[Phase, float]
    restart_seconds: float | None
    recomputed_steps: int | None
    missing_gpu_seconds: float
    lost_gpu_seconds: float


@dataclass(frozen=True, slots=True)
class JobAccount:
    """`steps`: how many different steps were done, None where none are reported."""

    job: str
    spans: tuple[Span, ...]
    losses: tuple[Loss, ...]
    steps: int | None

    @property
    def wall_seconds(self) -> float:
        return self.spans[-1].end - self.spans[0].start if self.spans else 0.0

    def seconds(self, phase: Phase) -> float:
        return sum(span.seconds for span in self.spans if span.phase is phase)

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio: productive over wall-clock time."""
        return self.seconds(Phase.PRODUCTIVE) / self.wall_seconds if self.wall_seconds > 0 else None

    @property
    def goodput(self) -> float | None:
        """Productive GPU-seconds of all that the job held or missed: an idle second and a missing GPU count alike."""
        held = sum(span.seconds * (span.gpus + span.missing) for span in self.spans)
        good = sum(span.seconds * span.gpus for span in self.spans if span.phase is Phase.PRODUCTIVE)
        return good / held if held > 0 else None


def account(record: JobRecord) -> JobAccount:
    """Divide the job's time. The spans are in order, touch one another, and reach from the first start to `until`."""
    generations = in_order(record.generations, record.until)
    # Where a job reports steps at all, a generation without any has not got as far as the first.
    steps_known = any(generation.first_step is not None for generation in generations)
    spans: list[Span] = []
    losses: list[Loss] = []
    lost: list[Span] = []
    shrunk: list[tuple[int, int]] = []
    high: int | None = None
    failed: tuple[Generation, float] | None = None
    for index, generation in enumerate(generations):
        follower = generations[index + 1] if index + 1 < len(generations) else None
        end = record.until if follower is None else follower.started_at
        report = record.reports.get(generation.number)
        stopped = stop_of(generation, report, end, follower is not None, record.outcome)
        missing = sum(gone for _, gone in shrunk)
        run = run_of(generation, end if stopped is None else stopped, high, failed is None, steps_known)
        down = down_of(generation, report, stopped, end, follower is None and record.outcome is Outcome.RUNNING)
        both = [replace(span, missing=missing) for span in (*run, *down) if span.seconds > 0]
        spans += both
        if failed is not None:
            lost += [span for span in run if span.phase in (Phase.TRANSITION, Phase.RECOMPUTING)]
            losses.append(loss_of(*failed, lost, restart_of(failed[1], generation, run, steps_known), repeated(generation, high)))
        for position, gone in shrunk:
            losses[position] = with_missing(losses[position], gone * sum(span.seconds for span in both))
        if generation.last_step is not None:
            high = generation.last_step if high is None else max(high, generation.last_step)
        failed, lost = (None, []) if stopped is None else ((generation, stopped), list(down))
        if follower is not None:
            shrunk = resized(shrunk, len(losses), follower.gpus - generation.gpus)
    if failed is not None:
        losses.append(loss_of(*failed, lost, None, None))
    firsts = [generation.first_step for generation in generations if generation.first_step is not None]
    return JobAccount(record.job, tuple(spans), tuple(losses), None if high is None else high - min(firsts) + 1)


def in_order(generations: Sequence[Generation], until: float) -> list[Generation]:
    """By number; none starts before the one below it, nor after the end."""
    ordered: list[Generation] = []
    for generation in sorted(generations, key=lambda item: item.number):
        earliest = ordered[-1].started_at if ordered else generation.started_at
        ordered.append(replace(generation, started_at=min(max(generation.started_at, earliest), until)))
    return ordered


def stop_of(generation: Generation, report: Report | None, end: float, followed: bool, outcome: Outcome) -> float | None:
    """When the generation stopped getting anywhere; None where it ran to `end`."""
    alive = generation.alive_at
    if not followed:
        if outcome is Outcome.DONE or (outcome is Outcome.RUNNING and report is None):
            return None
        if outcome is Outcome.RUNNING and report is not None and alive is not None and alive > report.reported_at:
            return None
    moment = end
    if report is not None:
        moment = report.reported_at if report.exited_at is None else min(report.exited_at, report.reported_at)
    step = generation.step_seconds or 0.0
    if alive is not None and moment - alive > max(STALL_SECONDS, STALL_STEPS * step):
        moment = alive + step
    return between(generation.started_at, moment, end)


def between(low: float, value: float, high: float) -> float:
    return min(max(value, low), high)


def run_of(generation: Generation, end: float, high: int | None, is_first: bool, steps_known: bool) -> list[Span]:
    """From its start to its first step, through the steps that are done again, to `end`."""
    start = generation.started_at
    if generation.first_step is None or generation.first_step_at is None:
        first = end if steps_known else start
    else:
        first = between(start, generation.first_step_at, end)
    caught = caught_up(generation, first, end, high)
    opening = Phase.STARTING if is_first else Phase.TRANSITION
    cuts = ((opening, start, first), (Phase.RECOMPUTING, first, caught), (Phase.PRODUCTIVE, caught, end))
    return [Span(phase, low, up, generation.gpus) for phase, low, up in cuts]


def caught_up(generation: Generation, first: float, end: float, high: int | None) -> float:
    """When it had passed the highest step of those before it."""
    repeats = repeated(generation, high)
    if not repeats or high is None or generation.last_step is None or generation.first_step is None:
        return first
    if generation.last_step <= high:
        return end
    if generation.caught_up_at is not None:
        return between(first, generation.caught_up_at, end)
    steps = generation.last_step - generation.first_step + 1
    pace = generation.step_seconds or max(0.0, (generation.alive_at or end) - first) / steps
    return between(first, first + repeats * pace, end)


def repeated(generation: Generation, high: int | None) -> int | None:
    """How many steps it did that had been done before."""
    if generation.first_step is None or generation.last_step is None:
        return None
    return 0 if high is None else max(0, min(high, generation.last_step) - generation.first_step + 1)


def down_of(generation: Generation, report: Report | None, stopped: float | None, end: float, is_open: bool) -> list[Span]:
    """From the stop to what came next. `is_open`: nothing has come yet, and the last phase reached goes on."""
    if stopped is None:
        return []
    moments: list[float | None] = [None, None, None]
    if report is not None:
        moments = [report.reported_at, report.diagnosed_at, report.decided_at]
    cuts, reached = [stopped], 0
    for moment in moments:
        if moment is None:
            break
        cuts.append(between(cuts[-1], moment, end))
        reached += 1
    cuts.append(end)
    phases = list(DOWN[:reached])
    # What follows the last known moment: still under way, or, where it is over, the way to the next start.
    phases.append(DOWN[reached] if is_open else Phase.TRANSITION)
    return [Span(phase, low, up, generation.gpus) for phase, (low, up) in zip(phases, pairwise(cuts), strict=True)]


def restart_of(stopped: float, generation: Generation, run: Sequence[Span], steps_known: bool) -> float | None:
    if steps_known and generation.first_step is None:
        return None
    return run[0].end - stopped


def resized(shrunk: list[tuple[int, int]], latest: int, change: int) -> list[tuple[int, int]]:
    """What is missing because of which loss, (index, GPUs), after the size changed; growth makes good the latest first."""
    if change < 0:
        return [*shrunk, (latest, -change)]
    left = list(shrunk)
    while change > 0 and left:
        index, gone = left.pop()
        if gone > change:
            left.append((index, gone - change))
        change -= gone
    return left


def loss_of(
    failed: Generation, stopped: float, lost: Sequence[Span], restart_seconds: float | None, recomputed: int | None
) -> Loss:
    seconds = dict.fromkeys((*DOWN, Phase.RECOMPUTING), 0.0)
    for span in lost:
        seconds[span.phase] += span.seconds
    return Loss(
        generation=failed.number,
        gpus=failed.gpus,
        stopped_at=stopped,
        ran_seconds=stopped - failed.started_at,
        seconds=seconds,
        restart_seconds=restart_seconds,
        recomputed_steps=recomputed,
        missing_gpu_seconds=0.0,
        lost_gpu_seconds=sum(span.seconds * span.gpus for span in lost),
    )


def with_missing(loss: Loss, gpu_seconds: float) -> Loss:
    return replace(
        loss,
        missing_gpu_seconds=loss.missing_gpu_seconds + gpu_seconds,
        lost_gpu_seconds=loss.lost_gpu_seconds + gpu_seconds,
    )


def days_of(spans: Sequence[Span]) -> Iterator[tuple[int, Span]]:
    """The spans cut at midnight UTC, each with its day (days since the epoch)."""
    for span in spans:
        start = span.start
        while start < span.end:
            day = int(start // DAY_SECONDS)
            stop = min(span.end, (day + 1) * DAY_SECONDS)
            yield day, replace(span, start=start, end=stop)
            start = stop
