"""Error rates of fault localisation over simulated clusters, beside the plain two-round rule and DLRover's pairing; and what
directing 1,024 agents costs the service.

SECONDS bounds the simulation (default 600); every cell stops at DRAWS draws (default 10,000) or when its share of the time is
up, and says how many it ran. SIZES names other sizes than 8, 64, 256 and 1,024 nodes.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path

from sqlalchemy import func, select

from recovery.localization.comparison import DLROVER, OURS, PLAIN, Experiment, Tally, compare
from recovery.localization.probes import Pool, Probe
from recovery.localization.simulation import Cluster, FaultKind
from service.localizations import Delivered, Localizations, Request
from service.migration import migrate
from service.store import Store
from service.store.jobs import Node
from service.store.localizations import DONE, LocalizationRow, ProbeRow
from service.store.recoveries import CommandRow

SECONDS = float(os.environ.get("SECONDS", "600"))
DRAWS = int(os.environ.get("DRAWS", "10000"))
SIZES = tuple(int(size) for size in os.environ.get("SIZES", "8 64 256 1024").split())
SHARE = 0.1
HARD_SHARES = (0.01, 0.05)
# So small a share breaks one part only.
ONE = 1e-6
LONG = frozenset({FaultKind.HEALTHY, FaultKind.INTERMITTENT_30, FaultKind.INTERMITTENT_60, FaultKind.FAR_LINK})


NOTES = """\
Simulated clusters, 95 % Wilson intervals over nodes, links and groups, pooled over draws. A part counts as found where it is
named as what it is: a slow node as slow, a rack as a group, a link by its ends. The plain rule and DLRover's pairing name only
nodes (DLRover's slow ones too), so they find no link and no group. `link`: on the job's ring; `far_link`: between any two nodes.
Seconds are of the simulated world: 0.15 s a warm probe, 2 s a failed one, 0.25 s to direct a batch."""

HEADER = (
    "| fault | nodes | broken | draws | precision | recall | batches | probes | seconds: mean, longest | "
    "plain: precision | plain: recall | DLRover: precision | DLRover: recall |"
)


def cells() -> list[tuple[FaultKind, int, float]]:
    """Every kind at the largest share, hard faults at smaller ones too, and one link that the ring does not use. What takes long
    comes last: it gets the time that the others left."""
    found = [(kind, size, SHARE) for size in SIZES for kind in FaultKind]
    found += [(FaultKind.HARD, size, share) for size in SIZES for share in HARD_SHARES]
    found += [(FaultKind.FAR_LINK, size, ONE) for size in SIZES]
    return sorted(found, key=lambda cell: (cell[0] in LONG, cell[1]))


def measured(kind: FaultKind, size: int, share: float, seconds: float) -> Experiment:
    ends = time.monotonic() + seconds
    return compare(kind, size, share, DRAWS, seed=1, enough=lambda: time.monotonic() > ends)


def rate(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def precision(tally: Tally) -> str:
    return rate(tally.precision, tally.precision_interval) if tally.right + tally.wrong else "nothing named"


def row(found: Experiment) -> str:
    ours, plain, dlrover = (found.tallies[name] for name in (OURS, PLAIN, DLROVER))
    draws, broken = ours.draws, ours.right + ours.missed
    recalls = [rate(tally.recall, tally.recall_interval) if broken else "-" for tally in (ours, plain, dlrover)]
    mean_turns, mean_probes, mean_seconds = (sum(values) / draws for values in (found.turns, found.probes, found.seconds))
    took = f"{mean_turns:.1f} | {mean_probes:.0f} | {mean_seconds:.1f}, {max(found.seconds):.1f}"
    broken_share = "one" if found.share == ONE else f"{found.share:.0%}"
    return (
        f"| {found.kind.value} | {found.nodes} | {broken_share} | {draws} | {precision(ours)} | {recalls[0]} | {took} | "
        f"{precision(plain)} | {recalls[1]} | {precision(dlrover)} | {recalls[2]} |"
    )


def orchestration(count: int = 1024) -> str:
    """Seconds that the service spends on one localisation of `count` nodes, one of them broken: its own work, without HTTP."""
    pool = Pool(tuple(f"n{index:04d}" for index in range(count)))
    cluster, rng = Cluster(pool, {"n0500": FaultKind.HARD}), random.Random(1)
    now = [1000.0]
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{Path(folder) / 'pitstop.sqlite'}")
        migrate(store)
        localizer = Localizations(store, lambda: now[0])
        with store.writing() as session:
            known = {"state": "ready", "versions": {}, "seen_at": 1.0, "probes": "gloo", "probes_at": 1000.0}
            session.add_all(Node(id=node, **known) for node in pool.nodes)
        wall, cpu, commands = 0.0, 0.0, 0
        with store.writing() as session:
            number = localizer.begin(session, Request(pool, "benchmark", now[0] + 60.0))
        while True:
            began, worked = time.monotonic(), time.process_time()
            localizer.tick()
            wall, cpu = wall + time.monotonic() - began, cpu + time.process_time() - worked
            with store.reading() as session:
                row = session.get_one(LocalizationRow, number)
                if row.state == DONE:
                    break
                orders = session.scalars(select(CommandRow).where(CommandRow.status.is_(None))).all()
                probes = session.scalars(select(ProbeRow).where(ProbeRow.outcome.is_(None))).all()
            seen = {probe.id: cluster.run(Probe(0, 1, tuple(probe.members)), rng) for probe in probes}
            for order in orders:
                result = seen[order.probe_id or 0]
                answer = {"outcome": result.outcome.value, "seconds": result.seconds, "error": "", "took": 0.2}
                localizer._inbox.put(Delivered(order.id, "done", 0, "", {**answer, "host": "10.0.0.1", "port": 4000}))
            commands += len(orders)
            now[0] += max(result.seconds for result in seen.values()) + 0.25
        with store.reading() as session:
            turns = session.scalar(select(func.max(ProbeRow.turn)))
            isolated = session.get_one(LocalizationRow, number).verdict["isolate"]  # type: ignore[index]
        store.close()
    return (
        f"{count} simulated agents, one broken node: {cpu:.2f} s of the service's processor time, {wall:.2f} s by the clock "
        f"(required: under 5 s; load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores while it ran) for {(turns or 0) + 1} "
        f"batches and {commands} commands with their answers, on SQLite; isolated: {', '.join(isolated)}."
    )


def run() -> str:
    plan = cells()
    directing = orchestration()
    lines = [
        HEADER,
        "|---|---:|---:|---:|---|---|---:|---:|---:|---|---|---|---|",
    ]
    ends = time.monotonic() + SECONDS
    for index, (kind, size, share) in enumerate(plan):
        left = (ends - time.monotonic()) / (len(plan) - index)
        lines.append(row(measured(kind, size, share, left)))
        print(lines[-1], flush=True)
    sizes = f"`SIZES='{' '.join(str(size) for size in SIZES)}' SECONDS={SECONDS:.0f} DRAWS={DRAWS}`"
    return f"# Localisation\n\n{directing}\n\n{NOTES} {sizes}.\n\n" + "\n".join(lines)
