"""The trial coordinator as a pure step: (state, event) -> (state, commands). Drivers, files and clocks are its caller's.

Samples count as generated when their outputs are on disk, and as verified when their verdicts are; what a trial wrote before it
died is kept, the rest is planned again. A failure is charged to the dataset it hit; one that keeps failing is given up and said,
the rest goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evaluation.events import (
    Command,
    Event,
    Finish,
    GiveUp,
    LeaveNode,
    NodeLost,
    NodeModel,
    PieceWritten,
    SlotsChanged,
    StageEnded,
    StageModel,
    StartTrial,
    StartVerification,
    StopTrial,
    Tick,
    TrialEnded,
    VerificationEnded,
)
from evaluation.planner import Plan, Site, plan_trials
from evaluation.workload import Dataset, Piece, Slot, Span, missing, total

__all__ = ["DatasetState", "RunState", "RunningTrial", "begin", "progress_of", "remaining", "step"]

MAX_FAILURES = 3
MAX_STAGINGS = 2
MAX_NODE_LOSSES = 3
# Seconds before a metric job that could not finish is tried again, by failures without progress.
RETRY_SECONDS = (5.0, 30.0)
PLAN_STEPS = 120
# A metric job shorter than this mostly pays for its start.
LEAST_JOB_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class DatasetState:
    """`generated` and `verified` samples; `failures` since the last progress; `given_up` says why, where it was.

    No metric job starts before `retry_at` (monotonic seconds).
    """

    dataset: Dataset
    generated: frozenset[int] = frozenset()
    verified: frozenset[int] = frozenset()
    failures: int = 0
    given_up: str | None = None
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """`pieces` by one process on `slot` since `started` (monotonic seconds)."""

    slot: Slot
    pieces: tuple[Piece, ...]
    started: float


@dataclass(frozen=True, slots=True)
class RunState:
    """One evaluation run. `verifying` holds what the CPU workers are at, by number; `plan` is the last one made.

    `node_losses`: trials killed on a node since one ended well there; at MAX_NODE_LOSSES it is left. `mounted`: trials can read
    the model where it lies.
    """

    site: Site
    datasets: Mapping[str, DatasetState]
    models: Mapping[str, NodeModel] = field(default_factory=dict)
    stagings: Mapping[str, int] = field(default_factory=dict)
    trials: Mapping[int, RunningTrial] = field(default_factory=dict)
    verifying: Mapping[int, tuple[str, frozenset[int]]] = field(default_factory=dict)
    stopping: frozenset[int] = frozenset()
    node_losses: Mapping[str, int] = field(default_factory=dict)
    mounted: bool = True
    next_number: int = 1
    finished: bool = False
    plan: Plan | None = None


def begin(
    site: Site,
    datasets: Iterable[Dataset],
    generated: Mapping[str, Iterable[int]],
    verified: Mapping[str, Iterable[int]],
    *,
    mounted: bool = True,
) -> RunState:
    """The state of a run whose folder holds these outputs and verdicts (none for a new one)."""
    states = {
        dataset.name: DatasetState(dataset, frozenset(generated.get(dataset.name, ())), frozenset(verified.get(dataset.name, ())))
        for dataset in datasets
    }
    return RunState(site, states, mounted=mounted)


def remaining(state: RunState) -> dict[str, list[Span]]:
    """By dataset, the samples that are neither on disk nor being generated, of those not given up."""
    busy: dict[str, set[int]] = {}
    for trial in state.trials.values():
        for piece in trial.pieces:
            busy.setdefault(piece.dataset, set()).update(range(piece.first, piece.last))
    return {
        name: missing(entry.dataset.samples, entry.generated | busy.get(name, set()))
        for name, entry in state.datasets.items()
        if entry.given_up is None
    }


def step(state: RunState, event: Event, now: float) -> tuple[RunState, tuple[Command, ...]]:
    """What `event` changes and what is to be done for it. `now`: monotonic seconds. A finished run does nothing more."""
    if state.finished:
        return state, ()
    commands: list[Command] = []
    match event:
        case Tick():
            pass
        case SlotsChanged(slots):
            slots = tuple(slot for slot in slots if not is_left(state, slot.node))
            leaving = frozenset(number for number, trial in state.trials.items() if trial.slot not in slots) - state.stopping
            commands += [StopTrial(number, f"slot {state.trials[number].slot} is given back") for number in sorted(leaving)]
            state = replace(state, site=replace(state.site, slots=slots), stopping=state.stopping | leaving)
        case NodeLost(node, why):
            state, left = leave_node(state, node, why)
            commands += left
        case StageEnded():
            state, left = stage_ended(state, event)
            commands += left
        case PieceWritten(_, dataset, samples):
            state = with_generated(state, {dataset: samples})
        case TrialEnded():
            state, given_up = trial_ended(state, event)
            commands += given_up
        case VerificationEnded():
            state, given_up = verification_ended(state, event, now)
            commands += given_up
    state, stages = stage_models(state)
    state, trials = start_trials(state, now)
    state, verifications = start_verifications(state, now)
    commands += [*stages, *trials, *verifications]
    return finish_where_done(state, commands)


def stage_ended(state: RunState, event: StageEnded) -> tuple[RunState, list[Command]]:
    """Staged, to be tried again, or read from storage: slower, and no reason not to evaluate. A node that can have the model
    neither way is left."""
    tries = state.stagings.get(event.node, 0)
    models = {name: model for name, model in state.models.items() if name != event.node}
    if event.error is None:
        models[event.node] = NodeModel.STAGED
    elif not event.again or tries >= MAX_STAGINGS:
        models[event.node] = NodeModel.STORAGE
    state = replace(state, models=models)
    if models.get(event.node) is NodeModel.STORAGE and not state.mounted:
        return leave_node(state, event.node, f"the model cannot be had there: {event.error}")
    return state, []


def is_left(state: RunState, node: str) -> bool:
    return state.node_losses.get(node, 0) >= MAX_NODE_LOSSES


def leave_node(state: RunState, node: str, why: str) -> tuple[RunState, list[Command]]:
    """Start nothing on `node` any more."""
    said: list[Command] = [] if is_left(state, node) else [LeaveNode(node, why)]
    slots = tuple(slot for slot in state.site.slots if slot.node != node)
    losses = {**state.node_losses, node: MAX_NODE_LOSSES}
    return replace(state, site=replace(state.site, slots=slots), node_losses=losses), said


def with_generated(state: RunState, samples: Mapping[str, frozenset[int]]) -> RunState:
    datasets = dict(state.datasets)
    for name, found in samples.items():
        entry = datasets[name]
        if found - entry.generated:
            datasets[name] = replace(entry, generated=entry.generated | found, failures=0)
    return replace(state, datasets=datasets)


def charged(state: RunState, name: str, why: str) -> tuple[RunState, list[Command]]:
    """One more failure of a dataset without progress in between; at MAX_FAILURES it is given up."""
    entry = state.datasets[name]
    failures = entry.failures + 1
    given_up = f"failed {failures} times without progress, last: {why}" if failures >= MAX_FAILURES else entry.given_up
    state = replace(state, datasets={**state.datasets, name: replace(entry, failures=failures, given_up=given_up)})
    return state, [GiveUp(name, given_up)] if given_up and entry.given_up is None else []


def trial_ended(state: RunState, event: TrialEnded) -> tuple[RunState, list[Command]]:
    trial = state.trials.get(event.trial)
    if trial is None:
        return state, []
    stopped = event.trial in state.stopping
    state = replace(
        state,
        trials={number: other for number, other in state.trials.items() if number != event.trial},
        stopping=state.stopping - {event.trial},
    )
    state = with_generated(state, event.samples)
    if stopped or is_left(state, trial.slot.node):
        return state, []
    state, left = node_judged(state, trial.slot.node, event)
    # The first piece that is not whole is where it stopped; those behind it never had their turn.
    for piece in trial.pieces:
        if not state.datasets[piece.dataset].generated.issuperset(range(piece.first, piece.last)):
            state, given_up = charged(state, piece.dataset, event.error or "the trial ended well and left samples without output")
            return state, [*left, *given_up]
    return state, left


def node_judged(state: RunState, node: str, event: TrialEnded) -> tuple[RunState, list[Command]]:
    """A node on which trials are killed one after another is left; the dataset is charged too: it may be its own doing."""
    if event.error is None:
        return replace(state, node_losses={**state.node_losses, node: 0}), []
    losses = state.node_losses.get(node, 0) + event.lost
    if losses >= MAX_NODE_LOSSES:
        return leave_node(state, node, f"{losses} trials were killed there one after another, last: {event.error}")
    return replace(state, node_losses={**state.node_losses, node: losses}), []


def verification_ended(state: RunState, event: VerificationEnded, now: float) -> tuple[RunState, list[Command]]:
    job = state.verifying.get(event.job)
    if job is None:
        return state, []
    name, samples = job
    state = replace(state, verifying={number: other for number, other in state.verifying.items() if number != event.job})
    entry = state.datasets[name]
    progress = bool(event.samples - entry.verified)
    failures = 0 if progress else entry.failures
    whole = samples <= event.samples
    retry_at = now if whole else now + RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
    entry = replace(entry, verified=entry.verified | event.samples, failures=failures, retry_at=retry_at)
    state = replace(state, datasets={**state.datasets, name: entry})
    if whole:
        return state, []
    return charged(state, name, event.error or "the metric job ended well and left samples without verdict")


def stage_models(state: RunState) -> tuple[RunState, list[Command]]:
    nodes = (
        sorted({slot.node for slot in state.site.slots} - state.models.keys())
        if any(map(total, remaining(state).values()))
        else []
    )
    stagings = {**state.stagings, **{node: state.stagings.get(node, 0) + 1 for node in nodes}}
    models = {**state.models, **dict.fromkeys(nodes, NodeModel.COMING)}
    return replace(state, models=models, stagings=stagings), [StageModel(node) for node in nodes]


def start_trials(state: RunState, now: float) -> tuple[RunState, list[Command]]:
    """Give each free slot whose node has the model its next trial of a fresh plan of what is left.

    Slots whose model is still coming keep their share: it comes within seconds to minutes.
    """
    busy = {trial.slot: trial for trial in state.trials.values()}
    open_slots = [
        slot for slot in state.site.slots if slot not in busy and state.models.get(slot.node) not in (None, NodeModel.COMING)
    ]
    spans = remaining(state)
    if not open_slots or not any(map(total, spans.values())):
        return state, []
    ready = {}
    for slot, trial in busy.items():
        expected = state.site.startup_seconds + sum(piece.gpu_seconds for piece in trial.pieces)
        # A trial that is late is expected to take a tenth more than it has taken by now.
        ready[slot] = max(trial.started + expected - now, (now - trial.started) * 0.1)
    datasets = [entry.dataset for name, entry in state.datasets.items() if name in spans]
    plan = plan_trials(replace(state.site, ready=ready), datasets, spans, steps=PLAN_STEPS)
    commands: list[Command] = []
    trials, number = dict(state.trials), state.next_number
    for slot in open_slots:
        first = next((trial for trial in plan.trials if trial.slot == slot), None)
        if first is not None:
            trials[number] = RunningTrial(slot, first.pieces, now)
            commands.append(StartTrial(number, slot, first.pieces, state.models[slot.node]))
            number += 1
    return replace(state, trials=trials, next_number=number, plan=plan), commands


def start_verifications(state: RunState, now: float) -> tuple[RunState, list[Command]]:
    """Give each free CPU worker of the dataset whose unverified outputs take longest, at most half of an even share of all."""
    commands: list[Command] = []
    verifying, number = dict(state.verifying), state.next_number
    while len(verifying) < state.site.cpu_workers:
        waiting: dict[str, tuple[float, list[int]]] = {}
        for name, entry in state.datasets.items():
            under_way = {sample for other, samples in verifying.values() if other == name for sample in samples}
            samples = sorted(entry.generated - entry.verified - under_way)
            if samples and entry.given_up is None and entry.retry_at <= now:
                waiting[name] = (entry.dataset.cpu_seconds / entry.dataset.samples, samples)
        if not waiting:
            break
        name = max(waiting, key=lambda name: (waiting[name][0] * len(waiting[name][1]), name))
        seconds, samples = waiting[name]
        share = max(LEAST_JOB_SECONDS, sum(each * len(found) for each, found in waiting.values()) / (2 * state.site.cpu_workers))
        chosen = frozenset(samples[: max(1, int(share / seconds))] if seconds > 0 else samples)
        verifying[number] = (name, chosen)
        commands.append(StartVerification(number, name, chosen))
        number += 1
    return replace(state, verifying=verifying, next_number=number), commands


def finish_where_done(state: RunState, commands: list[Command]) -> tuple[RunState, tuple[Command, ...]]:
    if state.trials or state.verifying or NodeModel.COMING in state.models.values():
        return state, tuple(commands)
    open_datasets = [
        name for name, entry in state.datasets.items() if entry.given_up is None and len(entry.verified) < entry.dataset.samples
    ]
    if open_datasets:
        # Without a slot the run waits, unless the nodes were left: those that were given back may return.
        if state.site.slots or all(losses < MAX_NODE_LOSSES for losses in state.node_losses.values()):
            return state, tuple(commands)
        why = f"no node is left to run on, {len(open_datasets)} datasets are open"
        return replace(state, finished=True), (*commands, Finish(why))
    lost = sum(entry.given_up is not None for entry in state.datasets.values())
    why = f"{lost} of {len(state.datasets)} datasets were given up" if lost else "every sample has its verdict"
    return replace(state, finished=True), (*commands, Finish(why))


def progress_of(state: RunState) -> dict[str, Any]:
    """The state as the service's page shows it while the run goes on."""
    return {
        "state": "finished" if state.finished else "running",
        "slots": len(state.site.slots),
        "expected_seconds": state.plan.makespan if state.plan is not None else None,
        "datasets": [
            {
                "name": entry.dataset.name,
                "samples": entry.dataset.samples,
                "generated": len(entry.generated),
                "verified": len(entry.verified),
                "given_up": entry.given_up,
            }
            for entry in state.datasets.values()
        ],
        "running": [
            {"slot": str(trial.slot), "label": "+".join(dict.fromkeys(piece.dataset for piece in trial.pieces))}
            for trial in state.trials.values()
        ],
    }
