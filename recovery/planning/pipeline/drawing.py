"""A schedule as a picture (SVG) and as a trace for chrome://tracing or Perfetto."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

from recovery.planning.pipeline.model import Schedule

__all__ = ["chrome_trace", "svg"]

COLOURS = {"F": "#5b8def", "B": "#f0a04b", "W": "#6abf69"}
DEAD = "#c9c9c9"
LABEL, ROW, WIDEST, MOST = 64, 16, 1600, 60_000


def svg(schedule: Schedule, title: str = "") -> str:
    """One row a worker, by stage, then replica; failed workers are grey. Numbers are micro-batches, where they find room.

    Pipelines of more than MOST operations are drawn with the first and the last living worker of each stage only.
    """
    problem = schedule.problem
    rows = schedule.table()
    shown = {(replica, stage) for replica in range(problem.replicas) for stage in range(problem.stages)}
    if len(rows) > MOST:
        alive = [problem.alive(stage) for stage in range(problem.stages)]
        shown = {(replica, stage) for stage, living in enumerate(alive) for replica in (living[0], living[-1])}
    order = {worker: index for index, worker in enumerate(sorted(shown, key=lambda worker: (worker[1], worker[0])))}
    end = max(int(start) + problem.lengths[int(kind)] for _, _, kind, _, start in rows)
    scale = min(20.0, (WIDEST - LABEL) / end)
    width, height = LABEL + end * scale + 8, (len(order) + 2) * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" font-family="sans-serif" font-size="9">',
        f"<title>{escape(title or f'period {schedule.period}')}</title>",
        f'<rect width="{width:.0f}" height="{height}" fill="white"/>',
    ]
    for (replica, stage), index in order.items():
        y = index * ROW
        parts.append(f'<text x="2" y="{y + 11}">s{stage} r{replica}</text>')
        if (replica, stage) in problem.failed:
            parts.append(f'<rect x="{LABEL}" y="{y + 1}" width="{end * scale:.1f}" height="{ROW - 2}" fill="{DEAD}"/>')
    for replica, stage, kind, batch, start in rows.tolist():
        place = order.get((replica, stage))
        length = problem.lengths[kind]
        if place is None or not length:
            continue
        x, y, name = LABEL + start * scale, place * ROW, "FBW"[kind]
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 1}" width="{length * scale:.1f}" height="{ROW - 2}" fill="{COLOURS[name]}" '
            f'stroke="white" stroke-width="0.5"><title>{name} of micro-batch {batch} at {start}</title></rect>'
        )
        if length * scale >= 6 * len(str(batch)):
            parts.append(f'<text x="{x + length * scale / 2:.1f}" y="{y + 11}" text-anchor="middle">{batch}</text>')
    y = (len(order) + 1) * ROW
    legend = " ".join(f'<tspan fill="{colour}">{name}</tspan>' for name, colour in COLOURS.items())
    parts.append(f'<text x="2" y="{y}">{legend} period {schedule.period} {escape(title)}</text></svg>')
    return "\n".join(parts)


def chrome_trace(schedule: Schedule) -> dict[str, Any]:
    """The Trace Event Format: a process a stage, a thread a replica, one unit of time a microsecond."""
    problem = schedule.problem
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": stage, "args": {"name": f"stage {stage}"}} for stage in range(problem.stages)
    ]
    for replica, stage, kind, batch, start in schedule.table().tolist():
        events.append(
            {
                "ph": "X",
                "name": f"{'FBW'[kind]} {batch}",
                "cat": "FBW"[kind],
                "pid": stage,
                "tid": replica,
                "ts": start,
                "dur": problem.lengths[kind],
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
