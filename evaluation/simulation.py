"""An evaluation run in simulated time: what each of the three decouplings saves against one trial per dataset, everything inline.

Loads of one node share its storage link evenly (papers.md 3.5: a 25 Gb/s storage NIC that collapses under concurrency).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evaluation.planner import Site, plan_trials, verify_in_order
from evaluation.workload import Dataset, Piece, Slot, cut

__all__ = ["Decoupling", "Outcome", "Storage", "TrialSpan", "simulate"]


@dataclass(frozen=True, slots=True)
class Decoupling:
    """Which parts are taken apart: model loading, metric computation, and trials planned from prior run times."""

    loading: bool = True
    metrics: bool = True
    planned: bool = True


@dataclass(frozen=True, slots=True)
class Storage:
    """`model_bytes` over a link of `bytes_per_second` per node, shared by the loads that are under way on it."""

    model_bytes: float
    bytes_per_second: float = 25e9 / 8


@dataclass(frozen=True, slots=True)
class TrialSpan:
    """One trial, seconds from the run's start: [start, loaded) start and load, [loaded, end) generation and inline metrics."""

    slot: Slot
    pieces: tuple[Piece, ...]
    start: float
    loaded: float
    end: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds; `held_idle` are slot seconds spent on starting, loading and inline metrics."""

    makespan: float
    trials: tuple[TrialSpan, ...]
    held_idle: float


@dataclass(slots=True)
class Loading:
    slot: Slot
    pieces: tuple[Piece, ...]
    start: float
    remaining: float


def simulate(site: Site, datasets: Sequence[Dataset], storage: Storage, decoupling: Decoupling) -> Outcome:
    """Run `datasets` on `site` as `decoupling` says; `site.ready` is not looked at: every slot is free at 0."""
    alone = storage.model_bytes / storage.bytes_per_second
    if decoupling.planned:
        per_node = max(1, len(site.slots) // len({slot.node for slot in site.slots}))
        # Inline, a plan must reckon with the link at its fullest: all slots of a node load at once at the start.
        load = 0.0 if decoupling.loading else alone * per_node
        ready = dict.fromkeys(site.slots, alone) if decoupling.loading else {}
        plan = plan_trials(
            replace(site, startup_seconds=site.startup_seconds + load, ready=ready), with_inline(datasets, decoupling)
        )
        queues = {slot: deque(trial.pieces for trial in plan.trials if trial.slot == slot) for slot in site.slots}
    else:
        shared: deque[tuple[Piece, ...]] = deque((piece,) for piece in cut(datasets, {}, 0.0))
        queues = dict.fromkeys(site.slots, shared)
    spans = run_slots(site, queues, storage, decoupling, alone)
    released = []
    for span in spans:
        clock = span.loaded
        for piece in span.pieces:
            clock += piece.gpu_seconds
            released.append((clock, piece))
    verifications = verify_in_order(site, released) if decoupling.metrics else []
    makespan = max((*(span.end for span in spans), *(job.end for job in verifications)), default=0.0)
    generating = sum(dataset.gpu_seconds for dataset in datasets)
    return Outcome(makespan, tuple(spans), sum(span.end - span.start for span in spans) - generating)


def with_inline(datasets: Sequence[Dataset], decoupling: Decoupling) -> list[Dataset]:
    """The datasets as the slots see them: with inline metrics the slot is held for both parts."""
    if decoupling.metrics:
        return list(datasets)
    return [replace(dataset, gpu_seconds=dataset.gpu_seconds + dataset.cpu_seconds, cpu_seconds=0.0) for dataset in datasets]


def run_slots(
    site: Site, queues: dict[Slot, deque[tuple[Piece, ...]]], storage: Storage, decoupling: Decoupling, alone: float
) -> list[TrialSpan]:
    """Slots take trials as they fall free; loads under way on a node share its link."""
    free = [(alone if decoupling.loading else 0.0, slot) for slot in site.slots]
    heapq.heapify(free)
    loading: list[Loading] = []
    starting: list[tuple[float, int, Loading]] = []
    spans: list[TrialSpan] = []
    clock, order = 0.0, 0

    def begin(load: Loading, moment: float) -> None:
        seconds = sum(piece.gpu_seconds for piece in load.pieces)
        if not decoupling.metrics:
            seconds += sum(piece.cpu_seconds for piece in load.pieces)
        spans.append(TrialSpan(load.slot, load.pieces, load.start, moment, moment + seconds))
        heapq.heappush(free, (moment + seconds, load.slot))

    while free or loading or starting:
        share = {node: sum(load.slot.node == node for load in loading) for node in {load.slot.node for load in loading}}
        finish = [clock + load.remaining * share[load.slot.node] / storage.bytes_per_second for load in loading]
        moments = [*finish, *(starting[0][:1] if starting else ()), *(free[0][:1] if free else ())]
        now = min(moments)
        for load in loading:
            load.remaining -= (now - clock) * storage.bytes_per_second / share[load.slot.node]
        clock = now
        for load in [load for load, moment in zip(loading, finish, strict=True) if moment <= now]:
            loading.remove(load)
            begin(load, now)
        while starting and starting[0][0] <= now:
            load = heapq.heappop(starting)[2]
            if decoupling.loading:
                begin(load, now)
            else:
                loading.append(load)
        while free and free[0][0] <= now:
            slot = heapq.heappop(free)[1]
            if queues[slot]:
                order += 1
                heapq.heappush(
                    starting, (now + site.startup_seconds, order, Loading(slot, queues[slot].popleft(), now, storage.model_bytes))
                )
    return spans
