"""What a run came to: scores by dataset, its processes as a drawing, what each decoupling saved at the measured times."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluation.coordinator import RunState
from evaluation.gantt import Bar
from evaluation.planner import Site
from evaluation.priors import Prior, learn
from evaluation.records import dataset_folder, read_records
from evaluation.runner import Entry
from evaluation.simulation import Decoupling, Storage, simulate
from evaluation.workload import Dataset

__all__ = ["bars_of", "learnt", "run_report", "savings"]

ALONE = {
    "loading": Decoupling(loading=True, metrics=False, planned=False),
    "metrics": Decoupling(loading=False, metrics=True, planned=False),
    "planning": Decoupling(loading=False, metrics=False, planned=True),
}


def measured_seconds(timeline: Sequence[Entry], kind: str) -> dict[str, tuple[int, float]]:
    """(samples, seconds) by dataset over all processes of a kind."""
    sums: dict[str, tuple[int, float]] = {}
    for entry in timeline:
        if entry.kind == kind:
            for name, samples, seconds in entry.measured:
                before = sums.get(name, (0, 0.0))
                sums[name] = (before[0] + samples, before[1] + seconds)
    return {name: value for name, value in sums.items() if value[0]}


def learnt(priors: Mapping[str, Prior], timeline: Sequence[Entry]) -> dict[str, Prior]:
    """`priors` with this run's measurements."""
    known = dict(priors)
    generation, verification = (measured_seconds(timeline, kind) for kind in ("trial", "verification"))
    for name in generation.keys() & verification.keys():
        known = learn(known, name, generation[name][1] / generation[name][0], verification[name][1] / verification[name][0])
    return known


def savings(site: Site, datasets: Sequence[Dataset], timeline: Sequence[Entry]) -> dict[str, float] | None:
    """Makespan of one trial per dataset with everything inline, over that of each decoupling alone and of all, in simulation.

    Times are this run's; None where its precursors brought nothing in, so that the storage link was not measured.
    """
    rates = [(entry.size, entry.size / (entry.end - entry.start)) for entry in timeline if entry.size and entry.end > entry.start]
    if not rates:
        return None
    storage = Storage(float(rates[0][0]), statistics.median(rate for _, rate in rates))
    inline = simulate(site, datasets, storage, Decoupling(loading=False, metrics=False, planned=False)).makespan
    found = {name: inline / simulate(site, datasets, storage, decoupling).makespan for name, decoupling in ALONE.items()}
    return {**found, "all": inline / simulate(site, datasets, storage, Decoupling()).makespan}


def bars_of(timeline: Sequence[Entry]) -> list[Bar]:
    """The timeline as bars from the run's start; metric jobs that overlap get rows of their own."""
    origin = min((entry.start for entry in timeline), default=0.0)
    free: list[float] = []
    bars: list[Bar] = []
    for entry in sorted(timeline, key=lambda entry: (entry.kind == "verification", entry.kind != "stage", entry.start)):
        row = entry.row
        if entry.kind == "verification":
            lane = next((index for index, end in enumerate(free) if end <= entry.start), len(free))
            free[lane:] = [entry.end, *free[lane + 1 :]]
            row = f"cpu {lane}"
        bars.append(Bar(row, entry.label, entry.start - origin, entry.end - origin, entry.error is not None))
    return bars


def run_report(name: str, model: str, folder: Path, state: RunState, timeline: Sequence[Entry]) -> dict[str, Any]:
    """The run's report. `score` is the mean over samples with a verdict; None where there is none."""
    datasets = []
    for entry in state.datasets.values():
        records = read_records(dataset_folder(folder / "verdicts", entry.dataset.name), entry.dataset.samples).by_sample.values()
        scores = [float(record["score"]) for record in records if isinstance(record.get("score"), int | float)]
        datasets.append(
            {
                "name": entry.dataset.name,
                "samples": entry.dataset.samples,
                "generated": len(entry.generated),
                "verified": len(entry.verified),
                "score": statistics.fmean(scores) if scores else None,
                "failed_samples": sum(record.get("failed") is not None for record in records),
                "given_up": entry.given_up,
            }
        )
    start = min((entry.start for entry in timeline), default=0.0)
    end = max((entry.end for entry in timeline), default=0.0)
    return {
        "version": 1,
        "run": name,
        "model": model,
        "state": "finished" if state.finished else "stopped",
        "started": start,
        "makespan_seconds": end - start,
        "slots": len(state.site.slots),
        "datasets": datasets,
        "trials": sum(entry.kind == "trial" for entry in timeline),
        "failures": [
            {"kind": entry.kind, "row": entry.row, "label": entry.label, "error": entry.error}
            for entry in timeline
            if entry.error
        ],
        "bars": [asdict(bar) for bar in bars_of(timeline)],
        "saved": savings(state.site, [entry.dataset for entry in state.datasets.values()], timeline)
        if state.site.slots
        else None,
    }
