"""The trial coordinator's plan: which slot generates what, in which order, so that generation and verification end soonest.

Two stages with parallel machines each (slots, then CPU workers): a hybrid flow shop. Long verifications start first, long
datasets are cut, short ones share a trial (papers.md 3.5); a seeded local search then mends what the rules leave.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evaluation.workload import Dataset, Piece, Slot, Span, cut

__all__ = ["Plan", "PlannedTrial", "Site", "Verification", "lower_bound", "plan_pieces", "plan_trials"]

SEARCH_STEPS = 400
# How finely the whole work of a slot is cut at most; finer pieces only pay more trial starts.
GRAINS = (0.0, 1.0, 0.5, 0.34, 0.25, 0.17, 0.125)


@dataclass(frozen=True, slots=True)
class Site:
    """What there is to run on. `ready` is when a slot can take its next trial, seconds from now (0 where absent).

    `startup_seconds` is what every trial costs before its first sample (interpreter, model from shared memory); pieces that
    follow one another on a slot share a trial until it would last longer than `trial_seconds`.
    """

    slots: tuple[Slot, ...]
    cpu_workers: int
    startup_seconds: float = 0.0
    trial_seconds: float = 600.0
    ready: Mapping[Slot, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """Pieces generated one after another by one process. `ends[i]`: when piece i is on disk; seconds from now."""

    slot: Slot
    pieces: tuple[Piece, ...]
    start: float
    ends: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """A piece's outputs verified by CPU worker `worker`; seconds from now."""

    piece: Piece
    worker: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Plan:
    """`makespan` and `bound` in seconds from now: no plan of these pieces on this site can end before `bound`."""

    trials: tuple[PlannedTrial, ...]
    verifications: tuple[Verification, ...]
    makespan: float
    bound: float
    reason: str


Order = list[list[Piece]]


def verify_in_order(site: Site, released: list[tuple[float, Piece]]) -> list[Verification]:
    """Verifications as the workers take them: at each free moment the longest of those whose outputs are there."""
    pending = sorted((moment, -piece.cpu_seconds, piece) for moment, piece in released if piece.cpu_seconds > 0)
    workers = [(0.0, worker) for worker in range(site.cpu_workers)]
    waiting: list[tuple[float, Piece]] = []
    done: list[Verification] = []
    index, clock = 0, 0.0
    while index < len(pending) or waiting:
        free, worker = heapq.heappop(workers)
        # What waits now was released by the moment of the last start, not by the moment this worker fell idle.
        free = clock = max(free, clock, 0.0 if waiting else pending[index][0])
        while index < len(pending) and pending[index][0] <= free:
            heapq.heappush(waiting, pending[index][1:])
            index += 1
        _, piece = heapq.heappop(waiting)
        done.append(Verification(piece, worker, free, free + piece.cpu_seconds))
        heapq.heappush(workers, (free + piece.cpu_seconds, worker))
    return done


def trials_of(site: Site, slot: Slot, pieces: Sequence[Piece]) -> list[PlannedTrial]:
    """`pieces` in this order on `slot`, cut into trials."""
    trials: list[PlannedTrial] = []
    clock = site.ready.get(slot, 0.0)
    group: list[Piece] = []
    ends: list[float] = []
    start = clock
    for piece in pieces:
        shares = bool(group) and bool(piece.runner) and piece.runner == group[-1].runner
        if group and (not shares or clock + piece.gpu_seconds - start > site.trial_seconds):
            trials.append(PlannedTrial(slot, tuple(group), start, tuple(ends)))
            group, ends, start = [], [], clock
        if not group:
            clock += site.startup_seconds
        clock += piece.gpu_seconds
        group.append(piece)
        ends.append(clock)
    if group:
        trials.append(PlannedTrial(slot, tuple(group), start, tuple(ends)))
    return trials


def timed(site: Site, order: Order) -> tuple[list[PlannedTrial], list[Verification], float]:
    trials = [trial for slot, pieces in zip(site.slots, order, strict=True) for trial in trials_of(site, slot, pieces)]
    released = [(end, piece) for trial in trials for piece, end in zip(trial.pieces, trial.ends, strict=True)]
    verifications = verify_in_order(site, released)
    makespan = max((*(trial.ends[-1] for trial in trials), *(job.end for job in verifications)), default=0.0)
    return trials, verifications, makespan


def dispatch(site: Site, pieces: Sequence[Piece]) -> Order:
    """Each piece, in this order, to the slot that is free first."""
    order: Order = [[] for _ in site.slots]
    free = [(site.ready.get(slot, 0.0), index) for index, slot in enumerate(site.slots)]
    heapq.heapify(free)
    for piece in pieces:
        moment, index = heapq.heappop(free)
        order[index].append(piece)
        heapq.heappush(free, (moment + piece.gpu_seconds + site.startup_seconds, index))
    return order


def priorities(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Orders worth dispatching: longest tail first, longest first, longest in all, and Johnson's rule."""
    short_first = sorted(
        (piece for piece in pieces if piece.gpu_seconds < piece.cpu_seconds), key=lambda piece: piece.gpu_seconds
    )
    tail_last = sorted(
        (piece for piece in pieces if piece.gpu_seconds >= piece.cpu_seconds), key=lambda piece: -piece.cpu_seconds
    )
    return [
        sorted(pieces, key=lambda piece: (-piece.cpu_seconds, -piece.gpu_seconds)),
        sorted(pieces, key=lambda piece: (-piece.gpu_seconds, -piece.cpu_seconds)),
        sorted(pieces, key=lambda piece: -(piece.gpu_seconds + piece.cpu_seconds)),
        short_first + tail_last,
    ]


def improved(site: Site, order: Order, bound: float, steps: int, chance: random.Random) -> Order:
    """Moves and swaps of single pieces that do not end later; never worse than `order`."""
    best = [list(pieces) for pieces in order]
    value = timed(site, best)[2]
    for _ in range(steps):
        if value <= bound * (1 + 1e-9):
            break
        source = chance.choice([index for index, pieces in enumerate(best) if pieces])
        target = chance.randrange(len(best))
        trial = [list(pieces) for pieces in best]
        piece = trial[source].pop(chance.randrange(len(trial[source])))
        position = chance.randint(0, len(trial[target]))
        if trial[target] and chance.random() < 0.5:
            other = trial[target].pop(min(position, len(trial[target]) - 1))
            trial[source].insert(chance.randint(0, len(trial[source])), other)
        trial[target].insert(min(position, len(trial[target])), piece)
        candidate = timed(site, trial)[2]
        if candidate <= value:
            best, value = trial, candidate
    return best


def filled(ready: Sequence[float], work: float) -> float:
    """The earliest moment by which machines that are free from `ready` on can have done `work` together."""
    level = 0.0
    for count, moment in enumerate(ready, 1):
        level = max(moment, (work + sum(ready[:count])) / count)
        if count == len(ready) or level <= ready[count]:
            break
    return level


def lower_bound(site: Site, pieces: Sequence[Piece]) -> float:
    """Seconds before which no plan of `pieces` can end: work of the slots, of the workers, and the longest piece of all."""
    if not pieces:
        return 0.0
    ready = sorted(site.ready.get(slot, 0.0) + site.startup_seconds for slot in site.slots)
    first = ready[0]
    generation = filled(ready, sum(piece.gpu_seconds for piece in pieces))
    verifying = [piece for piece in pieces if piece.cpu_seconds > 0]
    verification = 0.0
    if verifying:
        verification = first + min(piece.gpu_seconds for piece in verifying)
        verification += sum(piece.cpu_seconds for piece in verifying) / site.cpu_workers
    return max(generation, verification, first + max(piece.gpu_seconds + piece.cpu_seconds for piece in pieces))


def plan_pieces(site: Site, pieces: Sequence[Piece], *, steps: int = SEARCH_STEPS, seed: int = 0) -> Plan:
    """The best plan found for exactly these pieces. Deterministic for a seed. Raises ValueError without a slot or a worker."""
    if not site.slots or site.cpu_workers < 1:
        raise ValueError("an evaluation needs at least one slot and one CPU worker")
    bound = lower_bound(site, pieces)
    orders = sorted((dispatch(site, priority) for priority in priorities(pieces)), key=lambda order: timed(site, order)[2])
    order = orders[0]
    if pieces and steps:
        chance = random.Random(seed)
        order = min(
            (improved(site, start, bound, steps // 2, chance) for start in orders[:2]), key=lambda found: timed(site, found)[2]
        )
    trials, verifications, makespan = timed(site, order)
    reason = (
        f"{len(pieces)} pieces in {len(trials)} trials on {len(site.slots)} slots: {makespan:.0f} s, no plan under {bound:.0f} s"
    )
    return Plan(tuple(sorted(trials, key=lambda trial: (trial.start, trial.slot))), tuple(verifications), makespan, bound, reason)


def plan_trials(
    site: Site,
    datasets: Sequence[Dataset],
    spans: Mapping[str, Sequence[Span]] | None = None,
    *,
    steps: int = SEARCH_STEPS,
    seed: int = 0,
) -> Plan:
    """Cut the datasets as finely as it pays, and plan the pieces. `spans`: what is left of a dataset that has begun."""
    if not site.slots or site.cpu_workers < 1:
        raise ValueError("an evaluation needs at least one slot and one CPU worker")
    left = spans or {}
    work = sum(piece.gpu_seconds for piece in cut(datasets, left, 0.0)) / len(site.slots)
    chosen, soonest = GRAINS[0], plan_pieces(site, cut(datasets, left, 0.0), steps=0).makespan
    for grain in GRAINS[1:]:
        makespan = plan_pieces(site, cut(datasets, left, work * grain), steps=0).makespan
        # A finer cut has to earn its extra trials.
        if makespan < soonest * 0.99:
            chosen, soonest = grain, makespan
    return plan_pieces(site, cut(datasets, left, work * chosen), steps=steps, seed=seed)
