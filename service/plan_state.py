"""The cluster as planning sees it, drawn from the store: nodes, jobs with what was measured of them, and rates from history."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from recovery.decision import Action, DirectiveKind, Mode
from recovery.planning.cluster import DAY, ClusterState, TaskState
from recovery.planning.document import layout_of, model_of, pipeline_of
from recovery.planning.layouts import Hardware, Layout, Transformer
from recovery.planning.placement import Site
from recovery.planning.tasks import ClusterRates, PlanError
from recovery.planning.throughput import Point, Sizes, throughput
from recovery.states import Stage
from service.fleet import fleet_of
from service.situations import frozen, has_agent, modes_of, nodes_of
from service.store import Store
from service.store.database import select_in
from service.store.fleet import NodeReturn
from service.store.jobs import Attempt, Job, JobState, RankState, current_attempts
from service.store.plans import StepTime
from service.store.recoveries import RecoveryRow
from service.store.slurm import SlurmJob

__all__ = ["PLANNED", "StoredCluster", "note_step_times", "restricted", "stored_cluster"]

# States of the jobs that plans are about.
PLANNED = (JobState.RUNNING.value, JobState.REGISTERED.value)
# Where nothing is known of a job's arithmetic, a rank is taken to do this much: 0.4 of an A100's peak at half precision.
ASSUMED_FLOPS = 0.4 * 312e12
# Before there is history: one failure of a node in this time (10 in 8 weeks on 16 nodes; Unicron, section 7).
PRIOR_DAYS = 90.0
REPAIR_SECONDS = 2 * DAY
TRANSITION_SECONDS = 300.0
# Starting from a stored checkpoint instead of what the ranks still hold: environment, CUDA and recomputation (Unicron, figure 2).
RESTART_SECONDS = 1_740.0
HISTORY = 200
# Jobs that a note names; the others are counted.
NAMED = 5
# A step time that moves by less than this leaves plans as they are.
DRIFT = 0.1


@dataclass(frozen=True, slots=True)
class StoredCluster:
    """The state, and what was left out of it and why."""

    state: ClusterState
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Running:
    job: Job
    attempt: Attempt | None
    nodes: tuple[str, ...]

    @property
    def ranks(self) -> int:
        return len(self.attempt.ranks) if self.attempt is not None and self.attempt.ranks else self.job.ranks


def stored_cluster(session: Session, now: float) -> StoredCluster:
    """Every job that runs or waits to, on the nodes that can be used. Nodes are whole: jobs that share one are left out."""
    jobs = session.scalars(select(Job).where(Job.state.in_(PLANNED)).order_by(Job.name)).all()
    attempts = current_attempts(session, PLANNED)
    known = []
    for job in jobs:
        attempt = attempts.get(job.name)
        known.append(_Running(job, attempt, nodes_of(job, attempt) if job.state == JobState.RUNNING else ()))
    users = Counter(node for item in known for node in item.nodes)
    shared = {node for node, count in users.items() if count > 1}
    notes = [f"{node} is shared by several jobs, which are not planned" for node in sorted(shared)]
    points: dict[str, list[StepTime]] = {}
    for row in session.scalars(select(StepTime)):
        points.setdefault(row.job, []).append(row)
    transitions, placed = _transitions(session), set(session.scalars(select(SlurmJob.job)))
    sites = _sites(session, now, {node for node in users if node not in shared}, shared)
    tasks = []
    for item in known:
        if shared & set(item.nodes) or (item.job.state == JobState.RUNNING and not item.nodes):
            continue
        try:
            tasks.append(_task(session, item, points.get(item.job.name, []), transitions, len(sites), now, placed))
        except PlanError as problem:
            notes.append(f"{item.job.name} is not planned: {problem}")
            sites = {name: site for name, site in sites.items() if name not in item.nodes}
    guessed = [task.name for task in tasks if task.guessed and not task.waiting]
    if guessed:
        more = f" and {len(guessed) - NAMED} more" if len(guessed) > NAMED else ""
        names = ", ".join(guessed[:NAMED]) + more
        notes.append(f"no step time is known of {names}: each rank is taken to do {ASSUMED_FLOPS:.3g} FLOP/s")
    rates, repair = _rates(session, now)
    return StoredCluster(ClusterState(sites, tuple(tasks), rates, repair), tuple(notes))


def restricted(session: Session, state: ClusterState, moved: str | None = None) -> ClusterState:
    """The state in which jobs that may not be moved now without a person are held. `moved`: the failed one, planned for."""
    why = frozen(session)
    busy = set(session.scalars(select(RecoveryRow.job).where(RecoveryRow.over.is_(False)))) - {moved}
    tasks = []
    for task in state.tasks:
        mode = modes_of(session, session.get(Job, task.name))[Action.RECONFIGURE]
        held = task.held
        if held is None and not task.waiting:
            if why is not None:
                held = f"Pitstop is frozen {why}"
            elif task.name in busy:
                held = "it is recovering from a failure"
            elif task.guessed and task.name != moved:
                held = "none of its step times is known yet"
            elif mode is not Mode.AUTO:
                held = f"reconfigure is in mode {mode.value}"
        tasks.append(replace(task, held=held))
    return replace(state, tasks=tuple(tasks))


def _sites(session: Session, now: float, busy: set[str], left_out: set[str]) -> dict[str, Site]:
    """A node that a job runs on can be used; an idle one where it is heard of, in service and not under maintenance."""
    fleet = fleet_of(session, now)
    sites = {name: Site(name) for name in sorted(busy)}
    for name, node in fleet.nodes.items():
        if name in left_out:
            continue
        maintained = any(window.covers(node, now) for window in fleet.maintenance)
        usable = name in busy or (node.is_alive and node.cordoned_by is None and not maintained)
        sites[name] = Site(name, node.rack, usable, node.is_spare)
    return sites


def _task(
    session: Session,
    item: _Running,
    rows: Sequence[StepTime],
    transitions: Mapping[str, float],
    most: int,
    now: float,
    placed: Set[str],
) -> TaskState:
    """`placed`: the jobs that Slurm places."""
    job, layout = item.job, item.job.layout or {}
    of_node = max(1, item.ranks // max(1, len(item.nodes)))
    if not item.nodes and job.nodes:
        of_node = max(1, job.ranks // len(job.nodes))
    present = len(item.nodes)
    wanted = max(present, -(-int(layout.get("max_ranks") or job.ranks) // of_node))
    minimum = present or wanted if job.min_ranks is None else -(-job.min_ranks // of_node)
    model, allowed = _model(layout, job.name)
    schedule = layout.get("pipeline_schedule")
    pipeline = None if schedule is None else pipeline_of(schedule, job.name)
    replica = _replica_nodes(layout, of_node) if pipeline is None else pipeline.replica_nodes
    sizes = Sizes(max(1, minimum), wanted, replica if present % replica == 0 else 1)
    hardware = Hardware(gpus_per_node=of_node)
    points = [Point(row.nodes, row.seconds, _layout(row.layout)) for row in rows if row.ranks == row.nodes * of_node]
    flops = _flops(layout, model, points, of_node)
    guessed = not points and model is None
    if guessed:
        points = [Point(max(1, present or wanted), 1.0)]
        flops = ASSUMED_FLOPS * of_node * max(1, present or wanted)
    curve = throughput(points, flops, sizes, min(most, wanted), model, hardware, allowed)
    held = None
    if job.min_ranks is None and present:
        held = "its owner allows no other size (min_ranks)"
    elif job.name in placed:
        held = "Slurm places it"
    elif job.local:
        held = "it was registered without a token"
    elif present and not has_agent(session, item.nodes, now):
        held = "no agent is there to move it"
    at_present = curve.layouts.get(present)
    return TaskState(
        job.name,
        curve.values,
        item.nodes,
        job.weight,
        sizes.minimum,
        transitions.get(job.name, transitions.get("", TRANSITION_SECONDS)),
        transitions.get(f"{job.name} rollback", RESTART_SECONDS),
        replica if at_present is None else at_present.replica_nodes(hardware),
        held,
        waiting=not present,
        guessed=guessed,
        pipeline=pipeline,
        adapt_seconds=transitions.get(f"{job.name} adapt"),
    )


def _model(layout: Mapping[str, Any], job: str) -> tuple[Transformer | None, list[tuple[int, int]] | None]:
    model = layout.get("model")
    allowed = layout.get("layouts")
    pairs = None
    if isinstance(allowed, list):
        named = [layout_of({"data": 1, **pair}, job) for pair in allowed if isinstance(pair, Mapping)]
        pairs = [(pair.tensor, pair.pipeline) for pair in named] or None
    return (model_of(model, job) if isinstance(model, Mapping) else None), pairs


def _replica_nodes(layout: Mapping[str, Any], of_node: int) -> int:
    tensor, pipeline = layout.get("tensor", 1), layout.get("pipeline", 1)
    if not isinstance(tensor, int) or not isinstance(pipeline, int) or tensor < 1 or pipeline < 1:
        return 1
    return max(1, -(-tensor * pipeline // of_node))


def _flops(layout: Mapping[str, Any], model: Transformer | None, points: Sequence[Point], of_node: int) -> float | None:
    """FLOPs of a step: as the job said, as its model has, else as if its ranks ran at the assumed rate where it was measured."""
    said = layout.get("flops_per_step")
    if isinstance(said, int | float) and said > 0:
        return float(said)
    if model is not None or not points:
        return None
    return ASSUMED_FLOPS * of_node * points[0].units * points[0].step_seconds


def _layout(text: str) -> Layout | None:
    return Layout(*json.loads(text)) if text else None


def _layout_text(layout: Mapping[str, Any] | None, ranks: int) -> str:
    """The layout that a job names, as a key; empty where it does not name one for just these ranks."""
    try:
        found = layout_of({"data": 1, **(layout or {})}, "")
    except PlanError:
        return ""
    return json.dumps([found.tensor, found.pipeline, found.data, found.micro_batch]) if found.gpus == ranks else ""


class _Setting(NamedTuple):
    """What the step time of a job depends on."""

    job: str
    nodes: int
    ranks: int
    layout: str


def note_step_times(store: Store, now: float) -> None:
    """Note what the ranks of running jobs report, where it changed enough to matter."""
    with store.reading() as session:
        measured = _step_times(session, now)
        noted = {_Setting(row.job, row.nodes, row.ranks, row.layout): row.seconds for row in session.scalars(select(StepTime))}
    news = {key: seconds for key, seconds in measured.items() if key not in noted or abs(seconds / noted[key] - 1) > DRIFT}
    if not news:
        return
    with store.writing() as session:
        for setting, seconds in news.items():
            row = session.scalar(select(StepTime).filter_by(**setting._asdict()))
            if row is None:
                session.add(StepTime(**setting._asdict(), seconds=seconds, updated_at=now))
            else:
                row.seconds, row.samples, row.updated_at = (row.seconds + seconds) / 2, row.samples + 1, now


def _step_times(session: Session, now: float) -> dict[_Setting, float]:
    """Medians, of the running jobs all of whose ranks told theirs lately."""
    columns = RankState.job, RankState.step_seconds, RankState.state, RankState.heard_at
    present = and_(Job.name == RankState.job, Job.generation == RankState.generation, Job.state == JobState.RUNNING)
    told: dict[str, list[float]] = {}
    heard: dict[str, float] = {}
    for name, seconds, state, heard_at in session.execute(select(*columns).join(Job, present)):
        heard[name] = max(heard.get(name, heard_at), heard_at)
        if seconds and state == "running":
            told.setdefault(name, []).append(seconds)
    attempts = current_attempts(session, (JobState.RUNNING.value,)) if told else {}
    found = {}
    for job in select_in(session, select(Job), Job.name, sorted(told)):
        attempt = attempts.get(job.name)
        ranks = len(attempt.ranks) if attempt is not None and attempt.ranks else job.ranks
        nodes = len(nodes_of(job, attempt))
        if len(told[job.name]) >= ranks and nodes and now - heard[job.name] <= 60:
            setting = _Setting(job.name, nodes, ranks, _layout_text(job.layout, ranks))
            found[setting] = statistics.median(told[job.name])
    return found


def _rounded(value: float) -> float:
    """Two digits: what changes less is no news."""
    return float(f"{value:.1e}")


def _transitions(session: Session) -> dict[str, float]:
    """Measured medians: by job, by `JOB rollback` for those from a stored checkpoint, by `JOB adapt` for those without a restart,
    and over all under the empty name."""
    taken: dict[str, list[float]] = {}
    rows = session.scalars(
        select(RecoveryRow).where(RecoveryRow.stage == Stage.VERIFIED.value).order_by(RecoveryRow.id.desc()).limit(HISTORY)
    )
    for row in rows:
        trail = {step["stage"]: step["at"] for step in row.state.get("trail", ())}
        planned, verified = trail.get(Stage.PLANNED.value), trail.get(Stage.VERIFIED.value)
        if planned is None or verified is None or verified <= planned:
            continue
        decision = row.state.get("decision") or {}
        if decision.get("directive") == DirectiveKind.ADAPT.value:
            names: tuple[str, ...] = (f"{row.job} adapt",)
        elif decision.get("action") == Action.ROLLBACK.value:
            names = (f"{row.job} rollback",)
        else:
            names = (row.job, "")
        for name in names:
            taken.setdefault(name, []).append(verified - planned)
    return {name: _rounded(statistics.median(seconds)) for name, seconds in taken.items()}


def _rates(session: Session, now: float) -> tuple[ClusterRates, float]:
    """How long a node runs until it fails (from isolations for a fault and the time that attempts ran on nodes); repair time."""
    returns = session.scalars(select(NodeReturn).order_by(NodeReturn.id.desc()).limit(HISTORY)).all()
    failures = sum(row.incident_id is not None for row in returns)
    exposure = 0.0
    for attempt in session.scalars(select(Attempt).order_by(Attempt.id.desc()).limit(HISTORY)):
        nodes = {rank.get("node") for rank in attempt.ranks} - {None}
        exposure += max(0.0, (now if attempt.ended_at is None else attempt.ended_at) - attempt.started_at) * len(nodes)
    away = [row.returned_at - row.taken_at for row in returns if row.returned_at is not None and row.returned_at > row.taken_at]
    mtbf = (PRIOR_DAYS * DAY + exposure) / (1 + failures)
    return ClusterRates(_rounded(mtbf)), _rounded(statistics.median(away)) if away else REPAIR_SECONDS
