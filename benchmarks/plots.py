"""Line plots as SVG, for the results: no plotting library is needed to make them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

__all__ = ["line_plot"]

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 340, 70, 30, 170, 45
COLOURS = ("#2a9d5c", "#d9534f", "#6c6fb5", "#e8a33d", "#8d6e63", "#3b8ea5", "#c77dba")
TICKS = 5
Series = Mapping[str, Sequence[tuple[float, float]]]


def line_plot(title: str, x_label: str, y_label: str, series: Series, *, steps: bool = False) -> str:
    """One line a name; with `steps` each value holds until the next one. The y axis begins at 0."""
    points = [point for line in series.values() for point in line]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_high = max(y for _, y in points) * 1.05 or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / ((x_high - x_low) or 1.0)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / y_high * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>',
    ]
    for tick in range(TICKS + 1):
        x, y = x_low + (x_high - x_low) * tick / TICKS, y_high * tick / TICKS
        across, up = place(x, y)
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up:.1f}" y2="{up:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 6}" y="{up + 4:.1f}" text-anchor="end">{y:.3g}</text>',
            f'<text x="{across:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:.3g}</text>',
        ]
    for index, (name, line) in enumerate(series.items()):
        drawn = [place(*point) for point in line]
        if steps:
            drawn = [drawn[0]] + [corner for before, after in pairwise(drawn) for corner in ((after[0], before[1]), after)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
        colour = COLOURS[index % len(COLOURS)]
        legend = TOP + 16 * index + 8
        parts += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            f'<path d="M{WIDTH - RIGHT + 12} {legend}h20" stroke="{colour}" stroke-width="3"/>',
            f'<text x="{WIDTH - RIGHT + 38}" y="{legend + 4}">{escape(name)}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
