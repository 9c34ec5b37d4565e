"""What the accounts say, added up in the database: by reason in the form of Acme's table of failures (arXiv 2403.07648, table 3),
by rule, node, job and day, one by one, and failures against heat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from statistics import median
from typing import Any

from sqlalchemy import ColumnElement, Integer, and_, case, cast, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from recovery.accounts import DAY_SECONDS, DOWN, Phase
from rules.taxonomy import load_taxonomy
from service.store.accounts import GenerationRow, JobDay, LossRow, NodeHeat
from service.store.incidents import Incident

__all__ = [
    "UNREPORTED",
    "DayRow",
    "FailureRow",
    "HeatRow",
    "JobRow",
    "Subject",
    "day_rows",
    "failure_rows",
    "heat_rows",
    "job_rows",
    "loss_rows",
]

# The reason of a generation that ended without a word: its agent started it again while no service was there.
UNREPORTED = "not reported"
NOT_KNOWN = "not known"
HOUR = 3600.0
LOST = (*DOWN, Phase.RECOMPUTING)
HEAT_BAND_CELSIUS = 5
# What Acme saw rise in a hot July.
HEAT_FAMILIES = frozenset({"ECCError", "NVLinkError"})


@cache
def heat_reasons() -> tuple[str, ...]:
    """The reasons that heat is suspected of raising."""
    return tuple(name for name, reason in load_taxonomy().reasons.items() if reason.family in HEAT_FAMILIES)


class Subject(StrEnum):
    """What losses are added up by."""

    REASON = "reason"
    RULE = "rule"
    NODE = "node"
    JOB = "job"
    CATEGORY = "category"


REASON = func.coalesce(Incident.reason, UNREPORTED)
# By these at once: every subject's table is a sum over it.
KEYS = (REASON, func.coalesce(Incident.rule, NOT_KNOWN), func.coalesce(Incident.node, NOT_KNOWN))


@dataclass(frozen=True, slots=True)
class FailureRow:
    """Failures of one reason (rule, node, job, category). Times in seconds, shares of 1. Medians are drawn by reason only.

    `failed_share`: of the GPU time of all runs that ended in a failure; `lost_share`: of all GPU time that failures cost.
    """

    name: str
    category: str
    failures: int
    gpus_mean: float
    gpus_median: float | None
    to_failure_mean: float
    to_failure_median: float | None
    to_restart_mean: float | None
    to_restart_median: float | None
    failed_gpu_hours: float
    failed_share: float
    lost_gpu_hours: float
    lost_share: float
    detection_mean: float
    diagnosis_mean: float
    decision_mean: float
    transition_mean: float
    recomputing_mean: float
    recomputed_steps: int

    @property
    def restart_ratio(self) -> float | None:
        """TR/TF: the mean time to restart over the mean time to failure."""
        return None if self.to_restart_mean is None or not self.to_failure_mean else self.to_restart_mean / self.to_failure_mean


@dataclass(slots=True)
class Sums:
    """Failures added up. `phases`: seconds of downtime by phase, then of recomputation."""

    category: str
    failures: int = 0
    gpus: float = 0.0
    ran: float = 0.0
    failed_gpu_seconds: float = 0.0
    restart: float = 0.0
    restarted: int = 0
    lost_gpu_seconds: float = 0.0
    steps: int = 0
    phases: list[float] = field(default_factory=lambda: [0.0] * len(LOST))

    def add(self, numbers: Sequence[Any]) -> None:
        """One row of the database's sums, in the order of `SUMS`."""
        failures, gpus, ran, failed, restart, restarted, lost, steps, *phases = numbers
        self.failures += failures
        self.gpus += float(gpus)
        self.ran += ran
        self.failed_gpu_seconds += failed
        self.restart += restart
        self.restarted += restarted
        self.lost_gpu_seconds += lost
        self.steps += int(steps)
        for index, seconds in enumerate(phases):
            self.phases[index] += seconds


SUMS = (
    func.count(),
    func.sum(LossRow.gpus),
    func.sum(LossRow.ran_seconds),
    func.sum(LossRow.ran_seconds * LossRow.gpus),
    func.coalesce(func.sum(LossRow.restart_seconds), 0.0),
    func.count(LossRow.restart_seconds),
    func.sum(LossRow.lost_gpu_seconds),
    func.coalesce(func.sum(LossRow.recomputed_steps), 0),
    *(func.sum(getattr(LossRow, f"{phase.value}_seconds")) for phase in LOST),
)


def failure_rows(
    session: Session, since: float, until: float, subjects: Sequence[Subject] = tuple(Subject)
) -> dict[Subject, list[FailureRow]]:
    """Failures that stopped a job in that time, by each of the subjects, what cost most first."""
    where = (LossRow.stopped_at >= since, LossRow.stopped_at < until)
    found: dict[Subject, list[FailureRow]] = {}
    sums: dict[Subject, dict[str, Sums]] = {subject: {} for subject in subjects}
    joined = select(*KEYS, func.max(func.coalesce(Incident.category, NOT_KNOWN)), *SUMS).select_from(LossRow)
    joined = joined.outerjoin(Incident, Incident.id == LossRow.incident_id).where(*where).group_by(*KEYS)
    if set(subjects) - {Subject.JOB}:
        for row in session.execute(joined):
            reason, rule, node, category = row[:4]
            names = {Subject.REASON: reason, Subject.RULE: rule, Subject.NODE: node, Subject.CATEGORY: category}
            for subject in names.keys() & sums.keys():
                sums[subject].setdefault(names[subject], Sums(category)).add(row[4:])
    if Subject.JOB in sums:
        for of_job in session.execute(select(LossRow.job, *SUMS).where(*where).group_by(LossRow.job)):
            sums[Subject.JOB].setdefault(of_job[0], Sums(NOT_KNOWN)).add(of_job[1:])
    middles = medians(session, where) if Subject.REASON in sums else {}
    for subject, by_name in sums.items():
        failed = sum(item.failed_gpu_seconds for item in by_name.values())
        lost = sum(item.lost_gpu_seconds for item in by_name.values())
        known = middles if subject is Subject.REASON else {}
        rows = [row_of(name, item, known.get(name, (None, None, None)), failed, lost) for name, item in by_name.items()]
        found[subject] = sorted(rows, key=lambda row: (-row.lost_gpu_hours, -row.failures, row.name))
    return found


def row_of(
    name: str, item: Sums, middles: tuple[float | None, float | None, float | None], failed: float, lost: float
) -> FailureRow:
    means = [seconds / item.failures for seconds in item.phases]
    return FailureRow(
        name=name,
        category=item.category,
        failures=item.failures,
        gpus_mean=item.gpus / item.failures,
        gpus_median=middles[0],
        to_failure_mean=item.ran / item.failures,
        to_failure_median=middles[1],
        to_restart_mean=item.restart / item.restarted if item.restarted else None,
        to_restart_median=middles[2],
        failed_gpu_hours=item.failed_gpu_seconds / HOUR,
        failed_share=item.failed_gpu_seconds / failed if failed else 0.0,
        lost_gpu_hours=item.lost_gpu_seconds / HOUR,
        lost_share=item.lost_gpu_seconds / lost if lost else 0.0,
        detection_mean=means[0],
        diagnosis_mean=means[1],
        decision_mean=means[2],
        transition_mean=means[3],
        recomputing_mean=means[4],
        recomputed_steps=item.steps,
    )


def medians(session: Session, where: Sequence[ColumnElement[bool]]) -> dict[str, tuple[float | None, float | None, float | None]]:
    """GPUs, time to failure and time to restart by reason. Sorting them in the database takes longer than here."""
    values: dict[str, tuple[list[float], list[float], list[float]]] = defaultdict(lambda: ([], [], []))
    chosen = select(REASON, LossRow.gpus, LossRow.ran_seconds, LossRow.restart_seconds).select_from(LossRow)
    for reason, *numbers in session.execute(chosen.outerjoin(Incident, Incident.id == LossRow.incident_id).where(*where)):
        for kept, number in zip(values[reason], numbers, strict=True):
            if number is not None:
                kept.append(number)

    def middle(numbers: list[float]) -> float | None:
        return float(median(numbers)) if numbers else None

    return {name: (middle(gpus), middle(ran), middle(restart)) for name, (gpus, ran, restart) in values.items()}


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job's account of the days asked for. ETTR and goodput are shares of 1, None where nothing was held."""

    job: str
    wall_seconds: float
    ettr: float | None
    gpu_hours: float
    goodput: float | None
    lost_gpu_hours: float
    failures: int
    steps_per_hour: float | None


@dataclass(frozen=True, slots=True)
class DayRow:
    """All jobs on one day (days since the epoch): hours of GPUs by phase, and what they come to."""

    day: int
    gpu_hours: dict[str, float]
    ettr: float | None
    goodput: float | None


@dataclass(frozen=True, slots=True)
class HeatRow:
    """Hours that nodes spent in one band of temperature, and the NVLink and ECC failures of those hours."""

    from_celsius: int
    node_hours: int
    failures: int

    @property
    def per_thousand_hours(self) -> float:
        return 1000.0 * self.failures / self.node_hours


def in_phase(column: InstrumentedAttribute[float], phase: Phase) -> ColumnElement[float]:
    return func.sum(case((JobDay.phase == phase.value, column), else_=0.0))


def share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def days_between(since: float, until: float) -> ColumnElement[bool]:
    """Whole days: the one that `since` lies in is the first."""
    return JobDay.day.between(int(since // DAY_SECONDS), int(until // DAY_SECONDS))


def job_rows(session: Session, since: float, until: float, limit: int) -> list[JobRow]:
    """The jobs that held GPUs in that time, those with the most lost GPU-hours first."""
    held, missing = func.sum(JobDay.held_gpu_seconds), func.sum(JobDay.missing_gpu_seconds)
    productive = in_phase(JobDay.held_gpu_seconds, Phase.PRODUCTIVE)
    lost = (
        select(LossRow.job, func.count().label("failures"), func.sum(LossRow.lost_gpu_seconds).label("lost"))
        .where(LossRow.stopped_at >= since, LossRow.stopped_at < until)
        .group_by(LossRow.job)
        .subquery()
    )
    days = (
        select(
            JobDay.job,
            func.sum(JobDay.seconds).label("wall"),
            in_phase(JobDay.seconds, Phase.PRODUCTIVE).label("good"),
            held.label("held"),
            missing.label("missing"),
            productive.label("productive"),
        )
        .where(days_between(since, until))
        .group_by(JobDay.job)
        .subquery()
    )
    rows = session.execute(
        select(days, func.coalesce(lost.c.failures, 0), func.coalesce(lost.c.lost, 0.0))
        .outerjoin(lost, lost.c.job == days.c.job)
        .order_by(func.coalesce(lost.c.lost, 0.0).desc(), days.c.job)
        .limit(limit)
    ).all()
    reached = select(
        GenerationRow.job,
        func.max(GenerationRow.last_step) - func.min(GenerationRow.first_step) + 1,
        func.max(GenerationRow.alive_at) - func.min(GenerationRow.started_at),
    )
    names = [row[0] for row in rows]
    speeds = {
        job: HOUR * steps / seconds
        for job, steps, seconds in session.execute(reached.where(GenerationRow.job.in_(names)).group_by(GenerationRow.job))
        if steps and seconds
    }
    return [
        JobRow(
            job=job,
            wall_seconds=wall,
            ettr=share(good, wall),
            gpu_hours=gpu_seconds / HOUR,
            goodput=share(productive_gpu_seconds, gpu_seconds + gone),
            lost_gpu_hours=cost / HOUR,
            failures=failures,
            steps_per_hour=speeds.get(job),
        )
        for job, wall, good, gpu_seconds, gone, productive_gpu_seconds, failures, cost in rows
    ]


def day_rows(session: Session, since: float, until: float) -> list[DayRow]:
    """Each day of that time on which any job held GPUs."""
    seconds: dict[int, dict[str, tuple[float, float, float]]] = {}
    chosen = (
        select(
            JobDay.day,
            JobDay.phase,
            func.sum(JobDay.seconds),
            func.sum(JobDay.held_gpu_seconds),
            func.sum(JobDay.missing_gpu_seconds),
        )
        .where(days_between(since, until))
        .group_by(JobDay.day, JobDay.phase)
    )
    for day, phase, *sums in session.execute(chosen):
        seconds.setdefault(day, {})[phase] = (sums[0], sums[1], sums[2])
    nothing = (0.0, 0.0, 0.0)
    return [
        DayRow(
            day,
            {phase: sums[1] / HOUR for phase, sums in phases.items()},
            share(phases.get(Phase.PRODUCTIVE.value, nothing)[0], sum(sums[0] for sums in phases.values())),
            share(phases.get(Phase.PRODUCTIVE.value, nothing)[1], sum(sums[1] + sums[2] for sums in phases.values())),
        )
        for day, phases in sorted(seconds.items())
    ]


def loss_rows(
    session: Session, since: float, until: float, offset: int, limit: int
) -> tuple[int, list[tuple[LossRow, Incident | None]]]:
    """Single interruptions of that time, the newest first, with their incidents; and how many there are."""
    where = (LossRow.stopped_at >= since, LossRow.stopped_at < until)
    total = session.scalar(select(func.count()).select_from(LossRow).where(*where)) or 0
    rows = session.execute(
        select(LossRow, Incident)
        .outerjoin(Incident, Incident.id == LossRow.incident_id)
        .where(*where)
        .order_by(LossRow.stopped_at.desc(), LossRow.job, LossRow.generation)
        .offset(offset)
        .limit(limit)
    )
    return total, [(row[0], row[1]) for row in rows]


def heat_rows(session: Session, since: float, until: float) -> list[HeatRow]:
    """By bands of five degrees, over the hours for which the temperature of a node is known."""
    first, last = int(since // HOUR), int(until // HOUR)
    band = cast(func.floor(NodeHeat.highest_celsius / HEAT_BAND_CELSIUS), Integer) * HEAT_BAND_CELSIUS
    hours = select(band, func.count()).where(NodeHeat.hour.between(first, last)).group_by(band).order_by(band)
    struck = (
        select(band, func.count())
        .select_from(NodeHeat)
        .join(
            Incident, and_(Incident.node == NodeHeat.node, cast(func.floor(Incident.first_seen / HOUR), Integer) == NodeHeat.hour)
        )
        .where(NodeHeat.hour.between(first, last), Incident.first_seen >= since, Incident.merged_into.is_(None))
        .where(Incident.reason.in_(heat_reasons()))
        .group_by(band)
    )
    failures = {row[0]: row[1] for row in session.execute(struck)}
    return [HeatRow(row[0], row[1], failures.get(row[0], 0)) for row in session.execute(hours)]
